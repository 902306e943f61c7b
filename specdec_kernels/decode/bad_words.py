# SPDX-License-Identifier: Apache-2.0
"""Bad words of several ids (Request.bad_words): the ids that they forbid in each row of a step."""

from functools import cached_property

import torch

from .transfers import upload

__all__ = ["BadWords"]


class BadWords:
    """The bad words of a batch's requests, those of more than one id. (views.py serves the others.)

    A row forbids a word's last id if the output before the row ends with the word's other ids. They are compared on the
    device, so no draft is read to the host. A window [.., width] holds the last output tokens before a row, -1 where
    there is none.
    """

    def __init__(self, batch):
        self._batch = batch
        self._words = [[word for word in s.request.bad_words if len(word) > 1] for s in batch]
        self.width = max(len(word) for own in self._words for word in own) - 1  # of a window
        self._sent: tuple[list[int], torch.Tensor | None] = ([], None)  # the sequences' lengths, and `tail` for them

    @property
    def tail(self) -> torch.Tensor:
        """The windows [n, width] before a step's first rows."""
        lengths = [len(s.tokens) for s in self._batch]
        if self._sent[1] is None or self._sent[0] != lengths:
            tails = [s.tokens[max(len(s.request.prompt), len(s.tokens) - self.width) :] for s in self._batch]
            padded = [[-1] * (self.width - len(tail)) + tail for tail in tails]
            self._sent = lengths, upload(padded, self._batch.device)
        assert self._sent[1] is not None
        return self._sent[1]

    @cached_property
    def _known(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The words without their last ids [n, M, width], -1 where any token matches, and the last ids [n, M].

        Requests with fewer words are padded with -1.
        """
        most = max(map(len, self._words))  # M, words of a request
        starts = [[[-1] * (self.width + 1 - len(word)) + [*word[:-1]] for word in own] for own in self._words]
        starts = [own + [[-1] * self.width] * (most - len(own)) for own in starts]
        last = [[word[-1] for word in own] + [-1] * (most - len(own)) for own in self._words]
        return upload(starts, self._batch.device), upload(last, self._batch.device)

    def forbidden(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the ids [n, P, M] forbidden in P rows of each request. -1: the word forbids nothing there.

        windows [n, P, width]: the output before each row.
        """
        starts, last = (x[:, None] for x in self._known)
        return last.masked_fill(~((starts == windows[:, :, None]) | (starts == -1)).all(-1), -1)

    def along_chain(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the windows [n, G + 1, width] of the rows after 0, 1, ... G tokens of chains [n, G]."""
        return torch.cat([self.tail, tokens], 1).unfold(1, self.width, 1)

    def in_tree(self, parents: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the windows [n, N, width] of rows after each node. parents, tokens [n, N]: as verify_tree takes them.

        The tail is put above the tree as a chain of nodes, whose last one is the root.
        """
        n, above = len(tokens), self.width - 1  # nodes above the root
        all_tokens = torch.cat([self.tail, tokens[:, 1:]], 1)
        chain = torch.arange(-1, above, device=tokens.device).expand(n, -1)
        all_parents = torch.cat([chain, parents[:, 1:].long() + above], 1).clamp(min=0)
        nodes = torch.arange(above, above + tokens.shape[1], device=tokens.device).expand(n, -1)
        found: list[torch.Tensor] = []
        for _ in range(self.width):
            found.insert(0, all_tokens.gather(1, nodes))
            nodes = all_parents.gather(1, nodes)
        return torch.stack(found, -1)

    def after(self, drafted: torch.Tensor) -> torch.Tensor:
        """Return the windows [n, W, width] of W rows of each request, after their i drafts [n, W, i]."""
        tail = self.tail[:, None].expand(-1, drafted.shape[1], -1)
        return torch.cat([tail, drafted], 2)[..., -self.width :]

# SPDX-License-Identifier: Apache-2.0
"""A draft model whose cache keeps up with the sequences, whatever became of its drafts."""

import torch

from ..models.slot_cache import Branches

__all__ = ["DraftRunner"]


class DraftRunner:
    """What was drafted hangs as a tree on the last token cached (a chain is a tree); what came true of it is kept.

    reach: how many tokens a row may be behind in a joint pass; one that is further behind is fed by itself first.
    """

    def __init__(self, model, reach: int):
        self.model, self.reach = model, reach

    def begin(self, slots, capacity):
        self.cache = self.model.new_cache(slots, capacity)
        self.num_cached = [0] * slots  # how many of its sequence's tokens each slot has keys of
        self.drafted: list[dict] = [{} for _ in range(slots)]  # {(node, token): its child}, node 0 the last one cached

    def admit(self, slot, sequence):
        self.num_cached[slot], self.drafted[slot] = 0, {}
        self._read(slot, sequence.tokens[:-1])

    def move(self, source, target):
        self.cache.move(source, target)
        self.num_cached[target], self.drafted[target] = self.num_cached[source], self.drafted[source]

    def catch_up(self, batch) -> torch.Tensor:
        """Keep the drafts that the sequences have taken over, feed what is missing, the last token at least -> its
        logits [n, Vq]."""
        paths = [self._taken(slot, s.tokens) for slot, s in enumerate(batch)]
        self.cache.compact([n - 1 for n in self.num_cached], paths)
        missing = []
        for slot, (sequence, path) in enumerate(zip(batch, paths)):
            self.num_cached[slot] += len(path) - 1
            self.drafted[slot] = {}
            if len(sequence.tokens) - self.num_cached[slot] > self.reach:
                self._read(slot, sequence.tokens[self.num_cached[slot] : -1])
            missing.append(sequence.tokens[self.num_cached[slot] :])
        width = max(map(len, missing))
        ids = torch.tensor([m + [0] * (width - len(m)) for m in missing])
        logits = self._forward(ids, self.num_cached[: len(batch)], keep=[len(m) - 1 for m in missing])
        self.num_cached[: len(batch)] = [len(s.tokens) for s in batch]
        return logits

    def extend(self, tokens, depth: int) -> torch.Tensor:
        """Feed token `depth` + 1 of each row's chain, tokens [n], -1 where it has ended -> logits [n, Vq]."""
        for known, token in zip(self.drafted, tokens.tolist()):
            known[depth, token] = depth + 1
        start = [n + depth for n in self.num_cached[: len(tokens)]]
        return self._forward(tokens[:, None], start, keep=[0] * len(tokens))

    def grow(self, tokens, branches: Branches) -> torch.Tensor:
        """Feed nodes of each row's tree, tokens [n, W] -> logits [n, W, Vq]. Padding has parent -1."""
        rows = zip(self.drafted, branches.first, branches.parents.tolist(), tokens.tolist())
        for known, first, parents, row in rows:
            known.update({(p, t): first + j for j, (p, t) in enumerate(zip(parents[first:], row)) if p >= 0})
        return self._forward(tokens, [n - 1 for n in self.num_cached[: len(tokens)]], branches=branches)

    def _taken(self, slot, tokens):
        """The drafted nodes, from the root on, that the sequence went through; its last token is left to be fed."""
        path = [0]
        for token in tokens[self.num_cached[slot] : -1]:
            node = self.drafted[slot].get((path[-1], token))
            if node is None:
                break
            path.append(node)
        return path

    def _read(self, slot, tokens):
        if tokens:
            self._forward(torch.tensor([tokens]), [self.num_cached[slot]], slot=slot, keep=None)
            self.num_cached[slot] += len(tokens)

    def _forward(self, ids, start, **options):
        return self.model.forward(ids.clamp(0, self.model.vocab_size - 1), start, self.cache, **options)

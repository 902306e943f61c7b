# SPDX-License-Identifier: Apache-2.0
"""Views of logits: the penalties, biases and masks of requests, as fields of sk.Rows. Logits stay as they are."""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import Any

import torch

import specdec_kernels as sk

from ..registry import NO_PENALTIES
from .bad_words import BadWords
from .masks import Masks, Path
from .transfers import send, upload, upload_rows

__all__ = ["History", "Views"]

_Windows = Callable[[BadWords], torch.Tensor]


class History:
    """The distinct tokens of a sequence, ascending, and how often each is in its output: a list of sk.Penalties.

    It is kept on the host, where every emitted token is read anyway.
    """

    def __init__(self, prompt: Sequence[int]):
        self.ids = array("i", sorted(set(prompt)))
        self.counts = array("i", [0] * len(self.ids))
        self._read = len(prompt)  # how many tokens of the sequence are in the list

    def update(self, tokens: Sequence[int]) -> None:
        """Count the tokens of a sequence that were emitted since the last call."""
        for token in tokens[self._read :]:
            at = bisect_left(self.ids, token)
            if at == len(self.ids) or self.ids[at] != token:
                self.ids.insert(at, token)
                self.counts.insert(at, 0)
            self.counts[at] += 1
        self._read = len(tokens)


class Views:
    """The penalties, biases and masks of a batch's requests.

    A bias combines `logit_bias` with `min_tokens` and `bad_words`, which depend on the position.

    The methods return fields of sk.Rows in a dict, which is empty if no request has views.
    """

    def __init__(self, batch):
        self._batch, self._any = batch, any(s.request.views for s in batch)
        self._penalised = [not NO_PENALTIES.keys().isdisjoint(s.request.views) for s in batch]
        self._amounts = [batch.gather(name, off) for name, off in NO_PENALTIES.items()]
        self._masks = Masks(batch) if any(s.request.allowed for s in batch) else None
        self._words = BadWords(batch) if any(len(word) > 1 for s in batch for word in s.request.bad_words) else None
        self._made: list[int] = []  # the sequences' lengths when _history was uploaded
        self._history: tuple[torch.Tensor, ...] = ()

    def __bool__(self) -> bool:
        """Whether any request has views."""
        return self._any

    def check(self, proposal: Any) -> None:
        """Raise ValueError if a request has views and the proposal does not verify under them (takes_views)."""
        if getattr(proposal, "takes_views", False):
            return
        for s in self._batch:
            if s.request.views:
                wanted = f"a proposal must set takes_views to serve {', '.join(s.request.views)}"
                raise ValueError(f"propose: {wanted} (request {s.index}), got {type(proposal).__name__}")

    def chain(self, tokens: torch.Tensor) -> dict:
        """Return the fields of verify_chain's target rows, or draft rows, for drafts [n, G]."""
        n, G = tokens.shape

        def paths():
            return [[tuple(row[:i]) for i in range(G + 1)] for row in self._read(tokens)[0]]

        depth = lambda: torch.arange(G + 1, device=tokens.device).expand(n, -1)
        return self._fields(depth, paths, lambda words: words.along_chain(tokens))

    def along_chain(self, tokens: torch.Tensor) -> dict:
        """Return the fields of rows [n (G + 1), V], after 0, 1, ... G tokens of chains [n, G]; -1 ends a chain."""
        if not self:
            return {}
        n, G = tokens.shape
        before = torch.ones(G + 1, G, dtype=torch.bool, device=tokens.device).tril(-1)
        return _by_row(self.chain(tokens), tokens[:, None].expand(n, G + 1, G).masked_fill(~before, -1))

    def tree(self, parents: torch.Tensor, tokens: torch.Tensor) -> dict:
        """Return the fields of verify_tree's target rows, or draft rows. parents, tokens [n, N]: as verify_tree's."""
        paths = lambda: [*map(_paths, *self._read(parents, tokens))]
        return self._fields(lambda: sk.tree_mask(parents).depth, paths, lambda words: words.in_tree(parents, tokens))

    def after_chain(self, drawn: list[torch.Tensor]) -> dict:
        """Return the fields of rows [n, V], each after the drafts of its request. drawn: tokens [n, 1] per position."""
        if not self:
            return {}
        nothing = torch.empty(len(self._batch), 0, dtype=torch.int64, device=self._batch.device)
        return self.after(torch.cat([nothing, *drawn], 1)[:, None])

    def after_nodes(self, parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor, depth: int) -> dict:
        """Return the fields of rows [n W, V], after the nodes [n, W] at one depth of trees.

        parents, tokens: as in tree().
        """
        if not self:
            return {}
        path: list[torch.Tensor] = []
        for _ in range(depth):
            path.insert(0, tokens.gather(1, nodes))
            nodes = parents.gather(1, nodes).clamp(min=0).long()
        nothing = torch.empty(*nodes.shape, 0, dtype=torch.int64, device=nodes.device)
        return self.after(torch.cat([nothing, *(x[..., None] for x in path)], 2))

    def after(self, drafted: torch.Tensor) -> dict:
        """Return the fields of rows [n W, V], W per request. drafted [n, W, i]: the drafts before each row; -1 pads."""
        n, W, drafts = drafted.shape

        def paths():
            rows = self._read(drafted.flatten(1))[0]
            return [[tuple(row[i * drafts : (i + 1) * drafts]) for i in range(W)] for row in rows]

        depth = lambda: torch.full((n, W), drafts, dtype=torch.int64, device=drafted.device)
        return _by_row(self._fields(depth, paths, lambda words: words.after(drafted)), drafted)

    def _fields(self, depth: Callable[[], torch.Tensor], paths: Callable[[], list], windows: _Windows) -> dict:
        """Return the views of positions [n, P].

        The arguments are functions, so that only what a request needs is computed. depth: the number of drafts before
        each position. paths: those drafts. windows: the windows of bad words.
        """
        if not self:
            return {}
        allowed = None if self._masks is None else self._masks.after(paths())
        found = dict(penalties=self._penalties(), bias=self._bias(depth, windows), allowed=allowed)
        return {name: view for name, view in found.items() if view is not None}

    def _read(self, *tensors: torch.Tensor) -> list[list[list[int]]]:
        """Return the rows of tensors [n, k], read in one transfer. Tensors without columns are not read."""
        asked = [self._batch.readback.ask(x) if x.numel() else None for x in tensors]
        return [[[] for _ in self._batch] if reading is None else reading.rows for reading in asked]

    def _penalties(self) -> sk.Penalties | None:
        if not any(self._penalised):
            return None
        lengths = [len(s.tokens) for s in self._batch]
        if lengths != self._made:
            self._history, self._made = self._upload_history(), lengths
        return sk.Penalties(*self._amounts, *self._history)

    def _upload_history(self) -> tuple[torch.Tensor, ...]:
        """Return ids and counts [n, H] int32. The lists of requests without penalties are empty."""
        histories = [s.history if on else History(()) for s, on in zip(self._batch, self._penalised)]
        for s, on in zip(self._batch, self._penalised):
            if on:
                s.history.update(s.tokens)
        H = max(len(h.ids) for h in histories)
        ids, counts = array("i"), array("i")
        for h in histories:
            ids += h.ids + array("i", [-1] * (H - len(h.ids)))
            counts += h.counts + array("i", [0] * (H - len(h.ids)))
        flat = (torch.frombuffer(x, dtype=torch.int32).view(-1, H) for x in (ids, counts))
        return tuple(send(x, self._batch.device) for x in flat)

    def _bias(self, depth: Callable[[], torch.Tensor], windows: _Windows) -> sk.Bias | None:
        requests = [s.request for s in self._batch]
        emitted = [len(s.tokens) - len(s.request.prompt) for s in self._batch]
        early = [max(0, r.min_tokens - done) if r.eos else 0 for r, done in zip(requests, emitted)]
        if not any(early) and not any(r.logit_bias or r.bad_words for r in requests):
            return None
        ids, values, number = self._biases
        late = depth() >= upload(early, self._batch.device)[:, None]
        first = 2 * torch.arange(len(requests), device=self._batch.device)[:, None]
        row = number[first + late]
        if self._words is None:
            return sk.Bias(ids, values, row)
        bad = self._words.forbidden(windows(self._words)).flatten(0, 1)
        own = row.flatten().clamp(min=0)
        ids = torch.cat([ids[own].masked_fill(row.flatten()[:, None] < 0, -1), bad], 1)
        values = torch.cat([values[own], torch.full(bad.shape, -inf, dtype=values.dtype, device=values.device)], 1)
        return sk.Bias(ids, values, torch.arange(len(ids), device=ids.device).view_as(row))

    @cached_property
    def _biases(self) -> tuple[torch.Tensor, ...]:
        """Two lists of biases for each request b: list 2 b applies before its min_tokens, list 2 b + 1 after.

        ids, values [2 n, I], and the index [2 n] of each list, -1 if it is empty.
        """
        lists: list[dict[int, float]] = []
        for s in self._batch:
            always = (s.request.logit_bias or {}) | {word[0]: -inf for word in s.request.bad_words if len(word) == 1}
            lists += [always | dict.fromkeys(s.request.eos, -inf), always]
        number = [i if entries else -1 for i, entries in enumerate(lists)]
        values = [[*entries.values()] for entries in lists]
        device, I = self._batch.device, max(map(len, lists))
        values = [row + [0.0] * (I - len(row)) for row in values]
        return upload_rows([[*x] for x in lists], device), upload(values, device, torch.float32), upload(number, device)


def _by_row(fields: dict, drafted: torch.Tensor) -> dict:
    """Return fields of positions [n, W] as those of rows [n W, V]. drafted [n, W, i]: the drafts before each."""
    for name in fields.keys() & {"bias", "allowed"}:
        fields[name] = fields[name]._replace(row=fields[name].row.flatten())
    if "penalties" in fields:
        n, W, _ = drafted.shape
        given = fields["penalties"]
        amounts = {name: None if x is None else x.repeat_interleave(W) for name, x in zip(given._fields, given[:3])}
        row = torch.arange(n, device=drafted.device).repeat_interleave(W)
        fields["penalties"] = given._replace(**amounts, row=row, drafted=drafted.flatten(0, 1))
    return fields


def _paths(parents: list[int], tokens: list[int]) -> list[Path]:
    """Return the tokens on the path to each node of a tree, without the root's. A padding node's path ends in -1."""
    found: list[Path] = [()]
    for node in range(1, len(parents)):
        found.append((*found[parents[node]], tokens[node]) if 0 <= parents[node] < node else (-1,))
    return found

# SPDX-License-Identifier: Apache-2.0
"""What requests change in their rows before they are sampled from, as fields of sk.Rows."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import torch

import specdec_kernels as sk

from ..registry import NO_PENALTIES
from .transfers import send

__all__ = ["History", "Views"]


class History:
    """The distinct tokens of a sequence, ascending, and how often each is in its output: its lists in sk.Penalties.

    They are kept on the host, where the loop reads every emitted token anyway.
    """

    def __init__(self, prompt: Sequence[int]):
        self.ids = array("i", sorted(set(prompt)))
        self.counts = array("i", [0] * len(self.ids))
        self._read = len(prompt)  # tokens of the sequence that are counted

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
    """The penalties of a batch's requests.

    The methods return fields of sk.Rows. The dict is empty if no request changes its rows.
    """

    def __init__(self, batch):
        self._batch, self._any = batch, any(s.request.views for s in batch)
        self._penalised = [not NO_PENALTIES.keys().isdisjoint(s.request.views) for s in batch]
        self._amounts = [batch.gather(name, off) for name, off in NO_PENALTIES.items()]
        self._made: list[int] = []  # the sequences' lengths when _history was uploaded
        self._history: tuple[torch.Tensor, ...] = ()

    def __bool__(self) -> bool:
        """Whether a request may change its rows."""
        return self._any

    def check(self, proposal: Any) -> None:
        """Raise ValueError if the proposal does not verify under the views that a request has."""
        if getattr(proposal, "takes_views", False):
            return
        for s in self._batch:
            if s.request.views:
                wanted = f"a proposal must set takes_views to serve {', '.join(s.request.views)}"
                raise ValueError(f"generate: {wanted} (request {s.index}), got {type(proposal).__name__}")

    def chain(self, tokens: torch.Tensor) -> dict:
        """Return the fields of a side of verify_chain, of drafts [n, G]."""
        return self._fields()

    def tree(self, parents: torch.Tensor, tokens: torch.Tensor) -> dict:
        """Return the fields of a side of verify_tree. parents, tokens [n, N]: as it takes them."""
        return self._fields()

    def after_chain(self, drawn: list[torch.Tensor]) -> dict:
        """Return the fields of rows [n, V], each after the drafts of its request. drawn: [n, 1] of each position."""
        if not self:
            return {}
        nothing = torch.empty(len(self._batch), 0, dtype=torch.int64, device=self._batch.device)
        return self.after(torch.cat([nothing, *drawn], 1)[:, None])

    def after_nodes(self, parents: torch.Tensor, tokens: torch.Tensor, nodes: torch.Tensor, depth: int) -> dict:
        """Return the fields of rows [n W, V], those of the nodes [n, W] at one depth of trees, as tree() takes them."""
        if not self:
            return {}
        path: list[torch.Tensor] = []
        for _ in range(depth):
            path.insert(0, tokens.gather(1, nodes))
            nodes = parents.gather(1, nodes).clamp(min=0).long()
        nothing = torch.empty(*nodes.shape, 0, dtype=torch.int64, device=nodes.device)
        return self.after(torch.cat([nothing, *(x[..., None] for x in path)], 2))

    def after(self, drafted: torch.Tensor) -> dict:
        """Return the fields of rows [n W, V], W of each request. drafted [n, W, i]: the drafts before each; -1 pads."""
        fields = self._fields()
        if "penalties" in fields:
            (n, W, _), given = drafted.shape, fields["penalties"]
            amounts = {name: None if x is None else x.repeat_interleave(W) for name, x in zip(given._fields, given[:3])}
            row = torch.arange(n, device=drafted.device).repeat_interleave(W)
            fields["penalties"] = given._replace(**amounts, row=row, drafted=drafted.flatten(0, 1))
        return fields

    def _fields(self) -> dict:
        found = dict(penalties=self._penalties())
        return {name: view for name, view in found.items() if view is not None}

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

# SPDX-License-Identifier: Apache-2.0
"""Conversion of an op's arguments, checked by torch.ops.specdec_check, to those of kernels (csrc/binding/rows.h)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.registry import NOT_GIVEN

from . import launch
from .memory import Values, Views
from .row import Sampling

INTEGERS = (torch.int64, torch.int32)


class RowMemory(NamedTuple):
    data: torch.Tensor
    V: int
    batch_stride: int
    row_stride: int
    views: Views = launch.NO_VIEWS


def row_memory(t: torch.Tensor, views: Views = launch.NO_VIEWS) -> RowMemory:
    """Return the memory of rows [N, V] or [B, rows, V]."""
    return RowMemory(t, t.size(-1), t.stride(0), t.stride(-2), views)


def contiguous(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.contiguous()


def values(t: torch.Tensor | None) -> Values:
    """Return Values with one entry for each row or request, or one for all."""
    if t is None:
        return launch.NO_VALUES
    return Values(t, False) if t.size(0) == 1 else Values(t.contiguous(), True)


def numbers(given, count: int) -> tuple:
    """Return numbers that serve every row or request; None for one that is not given (NOT_GIVEN or NaN)."""
    return tuple(x if x > NOT_GIVEN else None for x in given) if given else (None,) * count


MOST_KEPT = float(1 << 24)  # no vocabulary is larger, and float32 holds it
_OFF = None, lambda k: k <= 0, lambda p: p == 1, lambda p: p == 0, lambda n: n == 0


def sampling(temperature, top_k, top_p, min_p, top_n_sigma, given) -> Sampling:
    """Return the sampling parameters: tensors, or numbers in their place, without filters that a number turns off."""
    T, k, *others = numbers(given, 5)
    of_all = T, None if k is None else min(k, MOST_KEPT), *others
    tensors = temperature, top_k, top_p, min_p, top_n_sigma
    if all(x is None for x in (*of_all, *tensors)):
        return launch.NO_SAMPLING
    own = [
        values(t) if x is None else launch.NO_VALUES if off is not None and off(x) else Values(x, None)
        for t, x, off in zip(tensors, of_all, _OFF)
    ]
    if own[0].data is None and any(x is not None for x in of_all):  # so that given() holds if all filters are off
        own[0] = Values(1.0, None)
    return Sampling(*own)


class GivenRows(NamedTuple):
    """The rows of one side as the dispatcher passes them (csrc/binding/rows.h)."""

    logits: torch.Tensor | None
    temperature: torch.Tensor | None
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    top_n_sigma: torch.Tensor | None
    numbers: list | None
    stats: torch.Tensor | None
    kind: int
    row: torch.Tensor | None

    def sampling(self) -> Sampling:
        return sampling(*self[1:7])


class GivenViews(NamedTuple):
    """The views of one side as the dispatcher passes them (csrc/binding/views.h)."""

    repetition: torch.Tensor | None
    frequency: torch.Tensor | None
    presence: torch.Tensor | None
    penalty_numbers: list | None
    history_marks: torch.Tensor | None
    history_counts: torch.Tensor | None
    history_row: torch.Tensor | None
    bias_ids: torch.Tensor | None
    bias_values: torch.Tensor | None
    bias_row: torch.Tensor | None
    allowed_bits: torch.Tensor | None
    allowed_row: torch.Tensor | None

    def of_windows(self, positions, *window) -> Views:
        """Return the Views. positions: Positions of the call; window: the fields of Views from `window` on."""
        if self.history_marks is self.bias_ids is self.allowed_bits is None:
            return launch.NO_VIEWS
        return Views(launch.FLAGS[True], *self.penalties(), *self.bias(positions), *self.mask(positions), *window)

    def penalties(self) -> tuple:
        marks, counts = self.history_marks, self.history_counts
        if marks is None or counts is None:
            return (*[launch.NO_VALUES] * 3, *[None] * 7, launch.NO_VALUES)
        amounts = [
            values(t) if x is None else Values(x, None) for t, x in zip(self[:3], numbers(self.penalty_numbers, 3))
        ]
        row = launch.NO_VALUES if self.history_row is None else Values(self.history_row.contiguous(), True)
        S, H = counts.shape
        marked = (None, marks.view(torch.int32)) if marks.dtype == torch.uint32 else (marks, None)  # tables or lists
        return *amounts, *marked, counts, S, H, marks.stride(0), counts.stride(0), row

    def bias(self, positions: Positions) -> tuple:
        if self.bias_ids is None:
            return (*[None] * 5, launch.NO_VALUES, None, None)
        ids, of_all = self.bias_ids.contiguous(), self.bias_values.contiguous()
        return ids, of_all, *ids.shape, ids.size(1), *positions.lists(ids, self.bias_row)

    def mask(self, positions: Positions) -> tuple:
        if self.allowed_bits is None:
            return (*[None] * 4, launch.NO_VALUES, None, None)
        bits = self.allowed_bits
        return bits, *bits.shape, bits.stride(0), *positions.lists(bits, self.allowed_row)

    def of_chains(self, draft_tokens: torch.Tensor, cu_draft: torch.Tensor | None) -> Views:
        if cu_draft is None:
            B, G = draft_tokens.shape
            return self.of_windows(Positions(B, G + 1), draft_tokens, *draft_tokens.stride(), None, 0, None, 0)
        D, starts = draft_tokens.size(0), cu_draft.contiguous()
        positions = Positions(len(starts) - 1, 0)
        return self.of_windows(positions, draft_tokens, 0, draft_tokens.stride(0), starts, D, None, 0)

    def of_trees(self, parents: torch.Tensor, node_tokens: torch.Tensor) -> Views:
        """Return the Views of trees. Both tensors are contiguous [B, N]."""
        B, N = node_tokens.shape
        return self.of_windows(Positions(B, N), node_tokens, N, 1, None, 0, parents, 0)


class Positions(NamedTuple):
    """The positions of B requests: `each` per request; 0 if they are ragged."""

    B: int
    each: int

    def lists(self, lists: torch.Tensor, row: torch.Tensor | None) -> tuple:
        """Return the indices of lists as Values, and the strides between requests and between positions."""
        numbered = lists if row is None else row
        of_requests = numbered.size(0) == self.B and (row is None or row.dim() == 1)
        numbers = launch.NO_VALUES if row is None else Values(row.contiguous(), True)
        return (numbers, 1, 0) if of_requests else (numbers, self.each, 1)


def seen_rows(t: torch.Tensor, views, drafted: torch.Tensor | None) -> RowMemory:
    """Return the memory of rows [N, V] with views, after the tokens `drafted` [N, n]."""
    strides, n = ((0, 0), 0) if drafted is None else (drafted.stride(), drafted.size(1))
    return row_memory(t, GivenViews(*views).of_windows(Positions(len(t), 1), drafted, *strides, None, 0, None, n))


def row_pair(p, p_stats, q, q_stats) -> tuple:
    """Return the Rows of a target's p [N, V] and a draft's q [N, Vq]: logits with stats, probabilities without."""
    return tuple(launch.rows(row_memory(x), stats is None, stats) for x, stats in ((p, p_stats), (q, q_stats)))

# SPDX-License-Identifier: Apache-2.0
"""Conversion of an op's arguments, checked by torch.ops.specdec_check, to those of kernels (csrc/binding/rows.h)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.registry import NOT_GIVEN

from . import launch
from .memory import Values
from .penalties import Penalties
from .row import Sampling

INTEGERS = (torch.int64, torch.int32)


class RowMemory(NamedTuple):
    data: torch.Tensor
    V: int
    batch_stride: int
    row_stride: int
    penalties: Penalties = launch.NO_PENALTIES


def row_memory(t: torch.Tensor, penalties: Penalties = launch.NO_PENALTIES) -> RowMemory:
    """Return the memory of rows [N, V] or [B, rows, V]."""
    return RowMemory(t, t.size(-1), t.stride(0), t.stride(-2), penalties)


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
_OFF = None, lambda k: k <= 0, lambda p: p == 1, lambda p: p == 0


def sampling(temperature, top_k, top_p, min_p, given) -> Sampling:
    """Return the sampling parameters: tensors, or numbers in their place, without filters that a number turns off."""
    T, k, *others = numbers(given, 4)
    of_all = T, None if k is None else min(k, MOST_KEPT), *others
    tensors = temperature, top_k, top_p, min_p
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
    numbers: list | None
    stats: torch.Tensor | None
    kind: int
    row: torch.Tensor | None

    def sampling(self) -> Sampling:
        return sampling(*self[1:6])


class GivenPenalties(NamedTuple):
    """The penalties of one side as the dispatcher passes them (csrc/binding/penalties.h)."""

    repetition: torch.Tensor | None
    frequency: torch.Tensor | None
    presence: torch.Tensor | None
    penalty_numbers: list | None
    history_ids: torch.Tensor | None
    history_counts: torch.Tensor | None
    history_row: torch.Tensor | None

    def of_windows(self, *window) -> Penalties:
        """Return the Penalties; `window` has their last fields."""
        ids, counts = self.history_ids, self.history_counts
        if ids is None:
            return launch.NO_PENALTIES
        amounts = [
            values(t) if x is None else Values(x, None) for t, x in zip(self[:3], numbers(self.penalty_numbers, 3))
        ]
        sizes = (*ids.shape, ids.stride(0), counts.stride(0))
        row = launch.NO_VALUES if self.history_row is None else Values(self.history_row.contiguous(), True)
        return Penalties(*amounts, ids, counts, *sizes, row, *window)

    def of_chains(self, draft_tokens: torch.Tensor, cu_draft: torch.Tensor | None) -> Penalties:
        if cu_draft is None:
            return self.of_windows(draft_tokens, *draft_tokens.stride(), None, 0, None, 0)
        D = draft_tokens.size(0)
        return self.of_windows(draft_tokens, 0, draft_tokens.stride(0), cu_draft.contiguous(), D, None, 0)

    def of_trees(self, parents: torch.Tensor, node_tokens: torch.Tensor) -> Penalties:
        """Return the Penalties of trees. Both tensors are contiguous [B, N]."""
        return self.of_windows(node_tokens, node_tokens.size(1), 1, None, 0, parents, 0)


def seen_rows(t: torch.Tensor, penalties, drafted: torch.Tensor | None) -> RowMemory:
    """Return the memory of rows [N, V] under penalties, after the tokens `drafted` [N, n]."""
    strides, n = ((0, 0), 0) if drafted is None else (drafted.stride(), drafted.size(1))
    return row_memory(t, GivenPenalties(*penalties).of_windows(drafted, *strides, None, 0, None, n))


def row_pair(p, p_stats, q, q_stats) -> tuple:
    """Return the Rows of a target's p [N, V] and a draft's q [N, Vq]: logits with stats, probabilities without."""
    return tuple(launch.rows(row_memory(x), stats is None, stats) for x, stats in ((p, p_stats), (q, q_stats)))

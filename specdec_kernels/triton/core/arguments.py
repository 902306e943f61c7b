# SPDX-License-Identifier: Apache-2.0
"""Conversion of an op's arguments, checked by torch.ops.specdec_check, to those of kernels (csrc/binding/rows.h)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from specdec_kernels.registry import NOT_GIVEN

from . import launch
from .draw import Random
from .memory import EntryIds, Store, Values, Views, get_value, stored_chunk
from .row import CHUNK, IDS_END, Sampling
from .views import locate, seen_entry

INTEGERS = (torch.int64, torch.int32)


class RowMemory(NamedTuple):
    data: torch.Tensor
    V: int
    batch_stride: int
    row_stride: int
    views: Views = launch.NO_VIEWS
    ids: EntryIds = launch.NO_IDS


def row_memory(t: torch.Tensor, views: Views = launch.NO_VIEWS) -> RowMemory:
    """Return the memory of rows [N, V] or [B, rows, V]."""
    return RowMemory(t, t.size(-1), t.stride(0), t.stride(-2), views)


def contiguous(t: torch.Tensor | None) -> torch.Tensor | None:
    return None if t is None else t.contiguous()


def values(t: torch.Tensor | None) -> Values:
    """Return a tensor as Values: one entry for each row or request, or one entry for all."""
    if t is None:
        return launch.NO_VALUES
    return Values(t, False) if t.size(0) == 1 else Values(t.contiguous(), True)


def numbers(given, count: int) -> tuple:
    """Return the parameters given as numbers for every row or request; None for each not given (NOT_GIVEN or NaN)."""
    return tuple(x if x > NOT_GIVEN else None for x in given) if given else (None,) * count


def noise(seed: torch.Tensor | None, offset: torch.Tensor | None) -> Random:
    """Return the source of a race's noise: seeds and offsets, or a noise key for each row."""
    return Random(
        Values(seed.contiguous(), seed.numel() > 1) if seed is not None and offset is None else values(seed),
        values(offset),
        None,
    )


MOST_KEPT = float(1 << 24)  # no vocabulary is larger, and float32 holds it
_OFF = None, lambda k: k <= 0, lambda p: p == 1, lambda p: p == 0, lambda n: n == 0


def sampling(temperature, top_k, top_p, min_p, top_n_sigma, given) -> Sampling:
    """Return the sampling parameters, each a tensor or one number. A filter that its number turns off is left out."""
    T, k, *others = numbers(given, 5)
    of_all = T, None if k is None else min(k, MOST_KEPT), *others
    tensors = temperature, top_k, top_p, min_p, top_n_sigma
    if all(x is None for x in (*of_all, *tensors)):
        return launch.NO_SAMPLING
    own = [
        values(t) if x is None else launch.NO_VALUES if off is not None and off(x) else Values(x, None)
        for t, x, off in zip(tensors, of_all, _OFF)
    ]
    if own[0].data is None and any(x is not None for x in of_all):  # so given() is true even if all filters are off
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
        """Return the Views. positions: the Positions of the call. window: the fields of Views from `window` on."""
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


@launch.kernel
def put_entries_kernel(
    rows, ids, end, B, G, bonus, D, cu_draft, count, parents, out, numbers, per_program, S: tl.constexpr
):
    """Write each position's row [k] with its bias, penalties and mask and, if `numbers` is given, the ids of its
    entries. An id outside [0, end) is written as -1: the entry has no id."""
    slot = tl.program_id(0) * S.ROWS + tl.arange(0, S.ROWS)
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    stored = row
    if rows.views.GIVEN:
        stored = row & 0xFFFFFFFF
        if parents is not None:  # each position is a tree's node, which was drawn at its parent: views are the parent's
            parent = get_value(parents + index, exists, 0).to(tl.int64)
            row = stored | (tl.where((parent > 0) & (parent < index - b * G), parent, 0) << 32)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, tl.cdiv(rows.V, CHUNK))):
        begin = tl.zeros([S.ROWS], tl.int32) + c * CHUNK
        entry = begin[:, None] + tl.arange(0, S.WIDTH)[None, :]
        inside = exists[:, None] & (entry < rows.V)
        id = stored_chunk(ids, b, stored, begin, inside, -1, S)  # exact, since float32 holds all ids below 2^24
        some = inside & (id >= 0) & (id < end)
        z = stored_chunk(rows, b, row, begin, inside, 0.0, S)
        if rows.views.GIVEN:
            z = seen_entry(rows.views, b[:, None], row[:, None], id.to(tl.int64), some, z)
        at = (index * rows.V)[:, None] + entry
        tl.store(out + at, tl.where(some, z, 0.0 if rows.PROBS else -float("inf")), mask=inside)
        if numbers is not None:
            place = at + (2 * (index + 1) * rows.V)[:, None]
            tl.store(numbers + place, tl.where(some, id, -1).to(tl.int32), mask=inside)


def by_id(
    rows: RowMemory,
    ids: torch.Tensor | None,
    probs: bool,
    layout: launch.Layout,
    store: Store = launch.NO_STORE,
    parents: torch.Tensor | None = None,
) -> RowMemory:
    """Copy a draft's rows that have ids, and return the copy. Its row n is that of position n, with bias, penalties and
    mask.

    ids: in the shape of the rows, or a VocabMap's uint32 numbers; None: `rows` is returned as it is."""
    if ids is None:
        return rows
    k, n, V, end = rows.V, layout.rows, None, IDS_END.value
    out = launch.empty(rows, (n, k), torch.float32)
    stored = rows._replace(views=launch.NO_VIEWS)
    if ids.dtype == torch.uint32:
        numbers, V = ids.view(torch.int32), ids.size(0) - 3 * k - 1
        stored, end = stored._replace(data=numbers[2 * k :], batch_stride=0, row_stride=0), V
    else:
        lists = ids if ids.stride(-1) == 1 else ids.contiguous()
        numbers = torch.full((n, 3, k), -1, dtype=torch.int32, device=ids.device)
        stored = stored._replace(data=lists, batch_stride=lists.stride(0), row_stride=lists.stride(-2))
    table = launch.table(k)
    sides = [launch.rows(x, probs, layout=layout, store=store) for x in (rows, stored)]
    args = (*sides, end, *layout.arguments(), parents, out, numbers if V is None else None)
    launch.run_chunks(put_entries_kernel, table, layout.slots, *args, threads=table.row_threads)
    if V is None:
        of_entries = numbers[:, 2]
        found, entries = torch.where(of_entries < 0, end, of_entries).sort(dim=1, stable=True)
        numbers[:, 0], numbers[:, 1] = torch.where(found < end, found, -1), entries
    each = layout.G + layout.extra
    return rows._replace(data=out, batch_stride=each * k, row_stride=k, views=launch.NO_VIEWS, ids=EntryIds(numbers, V))


def in_order(store: Store, stats: torch.Tensor | None) -> tuple:
    """Return the store and the stats of rows that by_id() has copied in the order of their positions."""
    if store.row is None:
        return store, stats
    number = store.row.flatten()
    n, there = number.numel(), (number >= 0) & (number < store.N)
    if stats is not None and store.N:
        stats = stats.reshape(-1, 4)[torch.where(there, number, 0).long()]
    own = torch.arange(n, device=number.device)
    return Store(torch.where(there, own, torch.where(number == -1, -1, n)), n, None, launch.FLAGS[True]), stats


def table_of(V: int, rows: RowMemory) -> launch.Table:
    """Return the Table for a target's rows of V ids and a draft's rows, whose ids may exceed V."""
    return launch.table(max(V, rows.V, 1 if rows.ids is launch.NO_IDS else launch.CHUNK))


def seen_rows(t: torch.Tensor, views, drafted: torch.Tensor | None, ids=None, count=None) -> RowMemory:
    """Return the memory of rows [N, V] with views, after the tokens `drafted` [N, n]."""
    strides, n = ((0, 0), 0) if drafted is None else (drafted.stride(), drafted.size(1))
    seen = GivenViews(*views).of_windows(Positions(len(t), 1), drafted, *strides, None, 0, None, n)
    return by_id(row_memory(t, seen), ids, False, launch.Layout.flat(len(t), count))


def row_pair(p, p_stats, q, q_stats, q_ids) -> tuple:
    """Return the Rows of a target's p [N, V] and a draft's q [N, Vq], and the Table for both. Rows with stats are
    logits; rows without are probabilities."""
    draft = by_id(row_memory(q), q_ids, q_stats is None, launch.Layout.flat(len(q), None))
    target = launch.rows(row_memory(p), p_stats is None, p_stats)
    return (target, launch.rows(draft, q_stats is None, q_stats)), table_of(p.size(1), draft)

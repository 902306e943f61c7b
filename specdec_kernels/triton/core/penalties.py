# SPDX-License-Identifier: Apache-2.0
"""Penalties on tokens that a request has used before, applied to entries as they are read (csrc/core/penalties.h and
csrc/cpu/penalties.cpp), for a block of rows.

Under penalties, the upper half of a row's index holds the position where its window of drafted tokens ends. So a row
has a different index after each window, and a negative index still means that there is no row.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, load_value


class Penalties(NamedTuple):
    """The penalties of one side. Windows are the drafts of a chain (from `starts` on if ragged) or nodes of a tree."""

    repetition: Any  # Values
    frequency: Any
    presence: Any
    ids: Any  # [S, H]; None: there are no penalties
    counts: Any
    S: Any
    H: Any
    ids_stride: Any
    counts_stride: Any
    row: Any  # Values: the index of each request's list; not given: list b is request b's
    window: Any  # [B, G], [D] or [B, N]; None: there is none
    window_stride: Any  # between requests
    token_stride: Any
    starts: Any  # ragged: [B+1], in [0, D]
    D: Any
    parents: Any  # of a tree: [B, N]
    drafted: Any  # tokens in the window of a row of [N, V]


class Amounts(NamedTuple):
    repetition: Any
    frequency: Any
    presence: Any


@triton.jit
def anywhere(mask):
    return tl.max(mask.to(tl.int32)) > 0


@triton.jit
def seen(penalties, row, position):
    """Return the index of a row after the window that ends at `position`; position 0: an empty window."""
    if penalties.ids is None:
        return row
    else:
        return row | ((position + penalties.drafted).to(tl.int64) << 32)


@triton.jit
def unseen(penalties, row):
    """Return the index of the row itself, without its window."""
    if penalties.ids is None:
        return row
    else:
        return row & 0xFFFFFFFF


@triton.jit
def _token(penalties, b, position, mask):
    """Return the last token of each window."""
    if penalties.window is None:
        return b * 0 - 1
    else:
        if penalties.parents is not None:
            at = b * penalties.window_stride + position
        elif penalties.starts is not None:
            start = get_value(penalties.starts + b, mask, 0).to(tl.int64)
            start = tl.minimum(tl.maximum(start, 0), penalties.D)
            at = (start + position - 1) * penalties.token_stride
        else:
            at = b * penalties.window_stride + (position - 1) * penalties.token_stride
        return get_value(penalties.window + at, mask, -1).to(tl.int64)


@triton.jit
def _before(penalties, b, position, mask):
    """Return where each window ends without its last token."""
    if penalties.parents is None:
        return position - 1
    else:
        parent = get_value(penalties.parents + b * penalties.window_stride + position, mask, 0).to(tl.int64)
        return tl.where((parent > 0) & (parent < position), parent, 0)


@triton.jit
def _first_place(penalties, ids, v, mask):
    """Return the first place in each list, from `ids` on, whose id is not below v. Padding, -1, counts as above v."""
    low = v * 0
    high = low + tl.where(mask, penalties.H, 0)
    while anywhere(low < high):
        middle = (low + high) // 2
        id = get_value(ids + middle, low < high, -1).to(tl.int64)
        below = (id >= 0) & (id < v)
        low = tl.where((low < high) & below, middle + 1, low)
        high = tl.where((low < high) & ~below, middle, high)
    return low


@triton.jit
def _count_in_window(penalties, b, position, v, mask):
    count = v * 0
    walking = mask & (position > 0)
    while anywhere(walking):
        count += tl.where(walking & (_token(penalties, b, position, walking) == v), 1, 0)
        position = tl.where(walking, _before(penalties, b, position, walking), position)
        walking &= position > 0
    return count


@triton.jit
def _count_in_list(penalties, ids, counts, v, mask):
    """Return whether v is listed, and its count."""
    j = _first_place(penalties, ids, v, mask)
    listed = mask & (j < penalties.H)
    listed &= get_value(ids + j, listed, -1).to(tl.int64) == v
    return listed, get_value(counts + j, listed, 0).to(tl.int64)


@triton.jit
def _times(x, y):
    """Return x * y, rounded before it is used.

    It is an fma with 0, which a compiler does not fuse with what follows. A product in double, converted to float, is
    no way around: compilers turn it into a product of floats, and fuse that."""
    zero = tl.zeros_like(x)
    return tl.fma(x, y + zero, zero)


@triton.jit
def _changed(amounts, e, count):
    """Return entries of used ids under the penalties; count: how often an id was used."""
    divided = tl.div_rn(e, tl.where(e > 0, amounts.repetition, 1.0))
    e = tl.where(e > 0, divided, _times(e, amounts.repetition))
    lower = e - _times(count.to(tl.float32), amounts.frequency)
    return tl.where(count > 0, lower - amounts.presence, e)


@triton.jit
def _look_up(penalties, b, alive):
    """Return the amounts of requests, where their lists begin, and which requests have valid amounts and lists.

    In tensors on a device, nothing has checked these before."""
    repetition = load_value(penalties.repetition, b, alive, 1.0)
    frequency = load_value(penalties.frequency, b, alive, 0.0)
    presence = load_value(penalties.presence, b, alive, 0.0)
    number = b
    if penalties.row.data is not None:
        number = load_value(penalties.row, b, alive, 0).to(tl.int64)
    inf = float("inf")
    fine = (repetition > 0) & (repetition < inf) & (tl.abs(frequency) < inf) & (tl.abs(presence) < inf)
    fine &= (number >= 0) & (number < penalties.S)
    number = tl.where(fine, number, 0)
    ids = penalties.ids + number * penalties.ids_stride
    counts = penalties.counts + number * penalties.counts_stride
    return Amounts(repetition, frequency, presence), ids, counts, fine


@triton.jit
def penalised_entry(penalties, b, row, v, mask, e):
    """Return entries e at ids v of rows under the penalties of requests b; NaN if the penalties are invalid."""
    b = tl.broadcast_to(b, e.shape)
    position = tl.broadcast_to(row, e.shape) >> 32
    v = tl.broadcast_to(v, e.shape)
    alive = tl.broadcast_to(mask, e.shape) & (position >= 0)
    amounts, ids, counts, fine = _look_up(penalties, b, alive)
    listed, count = _count_in_list(penalties, ids, counts, v, alive & fine)
    in_window = _count_in_window(penalties, b, position, v, alive & fine)
    used = listed | (in_window > 0)
    e = tl.where(used, _changed(amounts, e, count + in_window), e)
    return tl.where(alive & ~fine, float("nan"), e)


@triton.jit
def _lane(v, begin, mask):
    """Return the lanes of ids in their chunks; -1 where `mask` is not set."""
    return tl.where(mask, v - begin, -1).to(tl.int32)[:, None]


@triton.jit
def penalised_chunk(penalties, at, b, row, begin, end, alive, z):
    """Return chunks z [X, W] of rows under the penalties of requests b.

    The rows are at the addresses `at`, the chunks have ids from `begin` up to `end` [X]. Few of these ids are used, so
    they are changed one by one."""
    position = row >> 32
    amounts, ids, counts, fine = _look_up(penalties, b, alive)
    alive_fine = alive & fine
    lane = tl.arange(0, z.shape[1])[None, :]
    j = _first_place(penalties, ids, begin, alive_fine)
    listing = alive_fine & (j < penalties.H)
    while anywhere(listing):
        v = get_value(ids + j, listing, -1).to(tl.int64)
        listing &= (v >= begin) & (v < end)
        count = get_value(counts + j, listing, 0).to(tl.int64)
        count += _count_in_window(penalties, b, position, v, listing)
        e = _changed(amounts, get_value(at + v, listing, 0.0).to(tl.float32), count)
        z = tl.where(lane == _lane(v, begin, listing), e[:, None], z)
        j += 1
        listing &= j < penalties.H
    walk = position
    walking = alive_fine & (walk > 0)
    while anywhere(walking):
        v = _token(penalties, b, walk, walking)
        inside = walking & (v >= begin) & (v < end)
        if anywhere(inside):
            _, count = _count_in_list(penalties, ids, counts, v, inside)
            count += _count_in_window(penalties, b, position, v, inside)
            e = _changed(amounts, get_value(at + v, inside, 0.0).to(tl.float32), count)
            z = tl.where(lane == _lane(v, begin, inside), e[:, None], z)
        walk = tl.where(walking, _before(penalties, b, walk, walking), walk)
        walking &= walk > 0
    return tl.where((alive & ~fine)[:, None], float("nan"), z)

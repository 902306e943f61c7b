# SPDX-License-Identifier: Apache-2.0
"""The views of rows (a bias, penalties, a mask), applied to entries as they are read, for a block of rows
(csrc/core/views.h and csrc/cpu/views.cpp).

With views, the upper 32 bits of a row's index hold the position at which the row is read, where its window of drafted
tokens ends. One row therefore has a different index at each position. A negative index still means that there is no
row.
"""

import triton
import triton.language as tl

from .memory import get_value, is_present, load_value, names_row, number_of, span, stored_entry
from .penalties import Amounts, anywhere, changed, first_place, in_history, look_up


@triton.jit
def seen(views, row, position):
    """Return the index of a row read at `position`. Its window ends there, or views.drafted tokens later; a window that
    ends at 0 is empty."""
    if not views.GIVEN:
        return row
    else:
        return row | ((position + views.drafted).to(tl.int64) << 32)


@triton.jit
def locate(slot, rows, B, G, bonus, D, cu_draft, count):
    """Return the request of a slot of the grid, the index of its row with views, its position's index, and whether it
    exists.

    A request has G + extra positions, or g + extra if it is ragged with g drafts: extra is 1 if a row follows those of
    the drafts. The grid has G + bonus slots per request: bonus is 1 if the kernel reads that row too. Rows are in the
    order of positions, or rows.store has their indices.
    """
    positions = G + bonus
    b = slot // positions
    i = (slot - b * positions).to(tl.int64)
    b = b.to(tl.int64)
    exists = (slot < B * positions) & is_present(count, b)
    if cu_draft is None:
        index = b * (G + rows.extra) + i
        row = i
    else:
        start, g = span(cu_draft, b, G, D, exists)
        index = start + b * rows.extra + i
        row = index
        exists = exists & (i < g + bonus)
    if rows.store.row is not None:
        row = number_of(rows.store, index, exists)
        exists = exists & names_row(rows.store, row)
    return b, seen(rows.views, row, i), index, exists


@triton.jit
def _token(views, b, position, mask):
    """Return the last token of each window; -1 if there are no windows."""
    if views.window is None:
        return b * 0 - 1
    else:
        if views.parents is not None:
            at = b * views.window_stride + position
        elif views.starts is not None:
            start = get_value(views.starts + b, mask, 0).to(tl.int64)
            start = tl.minimum(tl.maximum(start, 0), views.D)
            at = (start + position - 1) * views.token_stride
        else:
            at = b * views.window_stride + (position - 1) * views.token_stride
        return get_value(views.window + at, mask, -1).to(tl.int64)


@triton.jit
def _before(views, b, position, mask):
    """Return the position at which each window ends once its last token is removed."""
    if views.parents is None:
        return position - 1
    else:
        parent = get_value(views.parents + b * views.window_stride + position, mask, 0).to(tl.int64)
        return tl.where((parent > 0) & (parent < position), parent, 0)


@triton.jit
def _count_in_window(views, b, position, v, mask):
    count = v * 0
    walking = mask & (position > 0)
    while anywhere(walking):
        count += tl.where(walking & (_token(views, b, position, walking) == v), 1, 0)
        position = tl.where(walking, _before(views, b, position, walking), position)
        walking &= position > 0
    return count


@triton.jit
def _list_of(views, row, S, stride, request_stride, position_stride, b, position, alive):
    """Return the offsets of the lists for requests b at `position`, which of them have a list, and which indices are
    valid."""
    at = b * request_stride + position * position_stride
    if views.starts is not None:
        start = get_value(views.starts + b, alive, 0).to(tl.int64)
        at = tl.where(position_stride > 0, tl.minimum(tl.maximum(start, 0), views.D) + b + position, at)
    number = at
    if row.data is not None:
        number = load_value(row, at, alive, -1).to(tl.int64)
    fine = (number >= -1) & (number < S)
    some = alive & fine & (number >= 0)
    return tl.where(some, number, 0) * stride, some, fine


@triton.jit
def _bias_list(views, b, position, alive):
    each, next = views.bias_request_stride, views.bias_position_stride
    return _list_of(views, views.bias_row, views.bias_S, views.bias_stride, each, next, b, position, alive)


@triton.jit
def _mask_list(views, b, position, alive):
    each, next = views.words_request_stride, views.words_position_stride
    return _list_of(views, views.words_row, views.words_S, views.words_stride, each, next, b, position, alive)


@triton.jit
def _is_allowed(views, at, v, mask):
    """Return whether the lists of allowed ids at offsets `at` allow the ids v >= 0. True where `mask` is not set: there
    is no list, or no such id."""
    word = v // 32
    bits = tl.load(views.words + at + word, mask=mask & (word < views.words_W), other=0)
    return ~mask | ((bits >> (v % 32).to(tl.int32)) & 1 == 1)


@triton.jit
def _biased(views, at, some, v, e):
    """Return entries e at ids v plus the values of the bias lists at offsets `at`, added in list order."""
    j = 0
    while j < views.bias_n:
        id = get_value(views.bias_ids + at + j, some, -1).to(tl.int64)
        value = get_value(views.bias_values + at + j, some & (id == v), 0.0)
        e = tl.where(some & (id == v), e + value, e)
        j += 1
    return e


@triton.jit
def seen_entry(views, b, row, v, mask, e):
    """Return entries e at ids v of rows with the views of requests b applied; NaN if a view is invalid."""
    b = tl.broadcast_to(b, e.shape)
    position = tl.broadcast_to(row, e.shape) >> 32
    v = tl.broadcast_to(v, e.shape)
    alive = tl.broadcast_to(mask, e.shape) & (position >= 0)
    valid = alive
    if views.bias_ids is not None:
        at, some, fine = _bias_list(views, b, position, alive)
        e = _biased(views, at, some, v, e)
        valid &= fine
    if views.counts is not None:
        amounts, marks, counts, fine = look_up(views, b, alive)
        used, count = in_history(views, marks, counts, v, alive & fine)
        in_window = _count_in_window(views, b, position, v, alive & fine)
        used |= in_window > 0
        e = tl.where(used, changed(amounts, e, count + in_window), e)
        valid &= fine
    if views.words is not None:
        at, some, fine = _mask_list(views, b, position, alive)
        e = tl.where(_is_allowed(views, at, v, some), e, -float("inf"))
        valid &= fine
    return tl.where(alive & ~valid, float("nan"), e)


@triton.jit
def _lane(v, begin, mask):
    """Return the lanes of ids v in chunks that begin at `begin`, [rows, 1]; -1 where `mask` is not set."""
    return tl.where(mask, v - begin, -1).to(tl.int32)[:, None]


@triton.jit
def _entry(side, b, row, v, mask, bias_at, some):
    """Return the entries of rows at ids v with their bias."""
    e = stored_entry(side, b, row, v, mask, 0.0)
    if side.views.bias_ids is None:
        return e
    else:
        return _biased(side.views, bias_at, some & mask, v, e)


@triton.jit
def seen_chunk(side, b, row, begin, end, alive, z):
    """Return chunks z [rows, width] with the views of requests b applied. The ids of a chunk are [begin, end).

    A bias, lists of used ids and windows change few ids, which are recomputed one by one from the entries in memory.
    Tables and the mask change the whole chunk."""
    views = side.views
    bias_at, some, valid = begin * 0, alive, alive
    if views.bias_ids is not None:
        bias_at, some, fine = _bias_list(views, b, row >> 32, alive)
        valid &= fine
        z = _biased_chunk(side, b, row, bias_at, some, begin, end, z)
    if views.counts is not None:
        amounts, marks, counts, fine = look_up(views, b, alive)
        valid &= fine
        if views.ids is not None:
            z = _with_list(side, b, row, begin, end, amounts, marks, counts, bias_at, some, valid, z)
        else:
            z = _with_table(views, begin, end, amounts, marks, counts, valid, z)
        z = _with_window(side, b, row, begin, end, amounts, marks, counts, bias_at, some, valid, z)
    if views.words is not None:
        words_at, masked, fine = _mask_list(views, b, row >> 32, alive)
        valid &= fine
        v = begin[:, None] + tl.arange(0, z.shape[1])[None, :]
        inside = masked[:, None] & (v < end[:, None])
        z = tl.where(_is_allowed(views, words_at[:, None], v, inside), z, -float("inf"))
    return tl.where((alive & ~valid)[:, None], float("nan"), z)


@triton.jit
def _biased_chunk(side, b, row, bias_at, some, begin, end, z):
    views = side.views
    lane = tl.arange(0, z.shape[1])[None, :]
    j = 0
    while j < views.bias_n:
        v = get_value(views.bias_ids + bias_at + j, some, -1).to(tl.int64)
        inside = some & (v >= begin) & (v < end)
        if anywhere(inside):
            e = _entry(side, b, row, v, inside, bias_at, some)
            z = tl.where(lane == _lane(v, begin, inside), e[:, None], z)
        j += 1
    return z


@triton.jit
def _with_table(views, begin, end, amounts, marks, counts, alive, z):
    v = begin[:, None] + tl.arange(0, z.shape[1])[None, :]
    inside = alive[:, None] & (v < end[:, None])
    used, count = in_history(views, marks[:, None], counts[:, None], v, inside)
    each = Amounts(amounts.repetition[:, None], amounts.frequency[:, None], amounts.presence[:, None])
    return tl.where(used, changed(each, z, count), z)


@triton.jit
def _with_list(side, b, row, begin, end, amounts, ids, counts, bias_at, some, alive, z):
    views, position = side.views, row >> 32
    lane = tl.arange(0, z.shape[1])[None, :]
    j = first_place(ids, views.H, begin, alive)
    listing = alive & (j < views.H)
    while anywhere(listing):
        v = get_value(ids + j, listing, -1).to(tl.int64)
        listing &= (v >= begin) & (v < end)
        count = get_value(counts + j, listing, 0).to(tl.int64)
        count += _count_in_window(views, b, position, v, listing)
        e = changed(amounts, _entry(side, b, row, v, listing, bias_at, some), count)
        z = tl.where(lane == _lane(v, begin, listing), e[:, None], z)
        j += 1
        listing &= j < views.H
    return z


@triton.jit
def _with_window(side, b, row, begin, end, amounts, marks, counts, bias_at, some, alive, z):
    views, position = side.views, row >> 32
    lane = tl.arange(0, z.shape[1])[None, :]
    walk = position
    walking = alive & (walk > 0)
    while anywhere(walking):
        v = _token(views, b, walk, walking)
        inside = walking & (v >= begin) & (v < end)
        if anywhere(inside):
            _, count = in_history(views, marks, counts, v, inside)
            count += _count_in_window(views, b, position, v, inside)
            e = changed(amounts, _entry(side, b, row, v, inside, bias_at, some), count)
            z = tl.where(lane == _lane(v, begin, inside), e[:, None], z)
        walk = tl.where(walking, _before(views, b, walk, walking), walk)
        walking &= walk > 0
    return z

# SPDX-License-Identifier: Apache-2.0
"""The views of rows (a bias, penalties, a mask), applied to entries as they are read, for a block of rows
(csrc/core/views.h and csrc/cpu/views.cpp).

With views, the upper 32 bits of a row's index hold the position that the row is read for: where its window of drafted
tokens ends. So one row has a different index at each position. A negative index still means that there is no row.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, load_value, lying_entry


class Amounts(NamedTuple):
    repetition: Any
    frequency: Any
    presence: Any


@triton.jit
def anywhere(mask):
    return tl.max(mask.to(tl.int32)) > 0


@triton.jit
def seen(views, row, position):
    """Return the index of a row at `position`, where its window ends; position 0: an empty window."""
    if not views.GIVEN:
        return row
    else:
        return row | ((position + views.drafted).to(tl.int64) << 32)


@triton.jit
def _token(views, b, position, mask):
    """Return the last token of each window."""
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
    """Return where each window ends without its last token."""
    if views.parents is None:
        return position - 1
    else:
        parent = get_value(views.parents + b * views.window_stride + position, mask, 0).to(tl.int64)
        return tl.where((parent > 0) & (parent < position), parent, 0)


@triton.jit
def first_place(ids, n, v, mask):
    """Return the first place in lists of n ids, from `ids` on, whose id is not below v. Padding, -1, counts as above
    v."""
    low = v * 0
    high = low + tl.where(mask, n, 0)
    while anywhere(low < high):
        middle = (low + high) // 2
        id = get_value(ids + middle, low < high, -1).to(tl.int64)
        below = (id >= 0) & (id < v)
        low = tl.where((low < high) & below, middle + 1, low)
        high = tl.where((low < high) & ~below, middle, high)
    return low


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
def _in_history(views, marks, counts, v, mask):
    """Return whether v was used before the window, and its count. A negative count is invalid."""
    if views.ids is not None:
        j = first_place(marks, views.H, v, mask)
        used = mask & (j < views.H)
        used &= get_value(marks + j, used, -1).to(tl.int64) == v
        return used, get_value(counts + j, used, 0).to(tl.int64)
    else:
        inside = mask & (v >= 0) & (v < views.H)
        count = tl.load(counts + v, mask=inside, other=0).to(tl.int64)
        bits = tl.load(marks + v // 32, mask=inside, other=0)
        used = inside & ((count != 0) | ((bits >> (v % 32).to(tl.int32)) & 1 == 1))
        return used, tl.where(count < 0, -(1 << 40), count)


@triton.jit
def _times(x, y):
    """Return x * y, rounded before it is used.

    It is an fma with 0, which compilers do not fuse with a following sum. A product in double that is rounded to float
    would not do: compilers turn it into a product of floats, and fuse that."""
    zero = tl.zeros_like(x)
    return tl.fma(x, y + zero, zero)


@triton.jit
def _changed(amounts, e, count):
    """Return entries of used ids under the penalties; count: how often an id was used, negative if that is invalid."""
    divided = tl.div_rn(e, tl.where(e > 0, amounts.repetition, 1.0))
    e = tl.where(e > 0, divided, _times(e, amounts.repetition))
    lower = e - _times(count.to(tl.float32), amounts.frequency)
    e = tl.where(count > 0, lower - amounts.presence, e)
    return tl.where(count < 0, float("nan"), e)


@triton.jit
def _look_up(views, b, alive):
    """Return the amounts of requests, where their histories' marks and counts begin, and which requests have valid
    amounts and indices.

    The host cannot check those of GPU tensors."""
    repetition = load_value(views.repetition, b, alive, 1.0)
    frequency = load_value(views.frequency, b, alive, 0.0)
    presence = load_value(views.presence, b, alive, 0.0)
    number = b
    if views.row.data is not None:
        number = load_value(views.row, b, alive, 0).to(tl.int64)
    inf = float("inf")
    fine = (repetition > 0) & (repetition < inf) & (tl.abs(frequency) < inf) & (tl.abs(presence) < inf)
    fine &= (number >= 0) & (number < views.S)
    number = tl.where(fine, number, 0)
    marks = (views.prompt_bits if views.ids is None else views.ids) + number * views.marks_stride
    counts = views.counts + number * views.counts_stride
    return Amounts(repetition, frequency, presence), marks, counts, fine


@triton.jit
def _list_of(views, row, S, stride, request_stride, position_stride, b, position, alive):
    """Return where the lists of requests b at their positions begin, which have one, and which indices are valid."""
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
    """Return whether the masks that begin at `at` allow the ids v >= 0; true outside `mask`, where there is none."""
    word = v // 32
    bits = tl.load(views.words + at + word, mask=mask & (word < views.words_W), other=0)
    return ~mask | ((bits >> (v % 32).to(tl.int32)) & 1 == 1)


@triton.jit
def _biased(views, at, some, v, e):
    """Return entries e at ids v plus the values of the bias lists that begin at `at`, added in list order."""
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
        amounts, marks, counts, fine = _look_up(views, b, alive)
        used, count = _in_history(views, marks, counts, v, alive & fine)
        in_window = _count_in_window(views, b, position, v, alive & fine)
        used |= in_window > 0
        e = tl.where(used, _changed(amounts, e, count + in_window), e)
        valid &= fine
    if views.words is not None:
        at, some, fine = _mask_list(views, b, position, alive)
        e = tl.where(_is_allowed(views, at, v, some), e, -float("inf"))
        valid &= fine
    return tl.where(alive & ~valid, float("nan"), e)


@triton.jit
def _lane(v, begin, mask):
    """Return the lanes of ids in their chunks; -1 where `mask` is not set."""
    return tl.where(mask, v - begin, -1).to(tl.int32)[:, None]


@triton.jit
def _entry(side, b, row, v, mask, bias_at, some):
    """Return the entries of rows at ids v with their bias."""
    e = lying_entry(side, b, row, v, mask, 0.0)
    if side.views.bias_ids is None:
        return e
    else:
        return _biased(side.views, bias_at, some & mask, v, e)


@triton.jit
def seen_chunk(side, b, row, begin, end, alive, z):
    """Return chunks z [X, W] of rows with the views of requests b applied. Ids are from `begin` up to `end` [X].

    A bias, lists of used ids and windows change few ids, which are recomputed one by one from the entries in memory.
    Tables and the mask change the whole chunk."""
    views = side.views
    bias_at, some, valid = begin * 0, alive, alive
    if views.bias_ids is not None:
        bias_at, some, fine = _bias_list(views, b, row >> 32, alive)
        valid &= fine
        z = _biased_chunk(side, b, row, bias_at, some, begin, end, z)
    if views.counts is not None:
        amounts, marks, counts, fine = _look_up(views, b, alive)
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
    used, count = _in_history(views, marks[:, None], counts[:, None], v, inside)
    each = Amounts(amounts.repetition[:, None], amounts.frequency[:, None], amounts.presence[:, None])
    return tl.where(used, _changed(each, z, count), z)


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
        e = _changed(amounts, _entry(side, b, row, v, listing, bias_at, some), count)
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
            _, count = _in_history(views, marks, counts, v, inside)
            count += _count_in_window(views, b, position, v, inside)
            e = _changed(amounts, _entry(side, b, row, v, inside, bias_at, some), count)
            z = tl.where(lane == _lane(v, begin, inside), e[:, None], z)
        walk = tl.where(walking, _before(views, b, walk, walking), walk)
        walking &= walk > 0
    return z

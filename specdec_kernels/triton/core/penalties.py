# SPDX-License-Identifier: Apache-2.0
"""Penalties on used ids, for a block of rows: a look-up in histories, and the changed entries
(csrc/core/penalties.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, load_value


class Amounts(NamedTuple):
    repetition: Any
    frequency: Any
    presence: Any


@triton.jit
def anywhere(mask):
    return tl.max(mask.to(tl.int32)) > 0


@triton.jit
def first_place(ids, n, v, mask):
    """Return the first place whose id is not below v in lists of n ids that begin at `ids`. Padding (-1) counts as
    above every id."""
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
def in_history(views, marks, counts, v, mask):
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

    It is an fma with 0, which compilers do not fuse with a following sum. A float64 product rounded to float32 would
    not do: compilers turn it into a float32 product, and fuse that with the sum."""
    zero = tl.zeros_like(x)
    return tl.fma(x, y + zero, zero)


@triton.jit
def changed(amounts, e, count):
    """Return entries of used ids after the penalties. count: the uses of each id; NaN is returned if it is negative."""
    divided = tl.div_rn(e, tl.where(e > 0, amounts.repetition, 1.0))
    e = tl.where(e > 0, divided, _times(e, amounts.repetition))
    lower = e - _times(count.to(tl.float32), amounts.frequency)
    e = tl.where(count > 0, lower - amounts.presence, e)
    return tl.where(count < 0, float("nan"), e)


@triton.jit
def look_up(views, b, alive):
    """Return the amounts of requests, where their histories' marks and counts begin, and which requests have valid
    amounts and history indices.

    The check is made here because the host cannot check GPU tensors."""
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

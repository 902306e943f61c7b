# SPDX-License-Identifier: Apache-2.0
"""One value of each of a program's rows, to and from memory; and rows that are found by number.

Where a program serves one row these are accesses of scalars: Triton's coalescing pass compares every access of a tensor
with the whole kernel, again and again.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Values(NamedTuple):
    """Of every request its own, or one for all of them."""

    data: Any  # [B] or [1], or a number; None: not given
    each: Any  # whether each has its own; None: a number, or nothing


SCALARS = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has none of one entry


@triton.jit
def get_value(at, mask, other):
    """tl.load of [ROWS] addresses."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        x = tl.load(at.item(), mask=mask.item(), other=other)
        return tl.full(at.shape, x, x.dtype)
    else:
        return tl.load(at, mask=mask, other=other)


@triton.jit
def put_value(at, x, mask):
    """tl.store to [ROWS] addresses."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        tl.store(at.item(), x.item(), mask=mask.item())
    else:
        tl.store(at, x, mask=mask)


@triton.jit
def load_value(values, b, mask, other):
    """A value of the requests b: `other` where none are given."""
    if values.data is None:
        return tl.zeros(b.shape, tl.float32) + other
    elif values.each is None:
        return tl.zeros(b.shape, tl.float32) + values.data
    else:
        return get_value(values.data + b.to(tl.int64) * values.each, mask, other)


@triton.jit
def hidden_zero():
    """0 that the compiler does not know to be constant"""
    return tl.minimum(tl.num_programs(0), 0)


@triton.jit
def start(value: tl.constexpr, dtype: tl.constexpr, S):
    """[ROWS] of a value, for a loop to begin with, which a compiler does not find to be constant: of a result of such a
    loop that has two uses Triton 3.6 fails."""
    return tl.full([S.ROWS], value, dtype) + hidden_zero().to(dtype)


@triton.jit
def some(mask):
    return tl.max(mask.to(tl.int32), 0) > 0


class Store(NamedTuple):
    """Row n of [S, K, V] is [n // K, n % K]; what lies outside [0, N) is no row."""

    row: Any  # [positions]; None: there is none
    N: Any
    K: Any  # None: of [N, V]
    OF_POSITIONS: Any  # whether the side's stats are those of positions, and not of the store's rows


@triton.jit
def number_of(store, index, there):
    """The number of a position's row, -1 where a position is not `there`."""
    return get_value(store.row + index, there, -1).to(tl.int64)


@triton.jit
def names_row(store, number):
    return (number >= 0) & (number < store.N)


@triton.jit
def is_present(count, b):
    """`count`: [1], or None where all are there."""
    if count is None:
        return b == b
    else:
        return b < tl.load(count)


@triton.jit
def span(cu_draft, b, G, D, exists):
    """Where request b's drafts start, and how many they are, inside [0, D] and [0, G] whatever cu_draft holds."""
    start = get_value(cu_draft + b, exists, 0).to(tl.int64)
    end = get_value(cu_draft + b + 1, exists, 0).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), D)
    g = tl.minimum(tl.maximum(end - start, 0), tl.minimum(D - start, G))
    return start, g.to(tl.int32)

# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of one value for each of a program's rows; loads of rows, including rows given by index.

If a program serves one row, get_value() and put_value() access scalars. These compile faster: for every access of a
tensor, Triton's coalescing pass looks at the whole kernel.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Values(NamedTuple):
    """A value for each request, row or position, or one for all of them."""

    data: Any  # [B] or [1], or a number; None: not given
    each: Any  # whether each request has its own value; None: data is a number or None


SCALARS = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter makes no scalar of one entry


@triton.jit
def get_value(at, mask, other):
    """tl.load, of a scalar if there is one address."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        x = tl.load(at.item(), mask=mask.item(), other=other)
        return tl.full(at.shape, x, x.dtype)
    else:
        return tl.load(at, mask=mask, other=other)


@triton.jit
def put_value(at, x, mask):
    """tl.store, of a scalar if there is one address."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        tl.store(at.item(), x.item(), mask=mask.item())
    else:
        tl.store(at, x, mask=mask)


@triton.jit
def load_value(values, b, mask, other):
    """Return the value of each request b; `other` if no values are given."""
    if values.data is None:
        return tl.zeros(b.shape, tl.float32) + other
    elif values.each is None:
        return tl.zeros(b.shape, tl.float32) + values.data
    else:
        return get_value(values.data + b.to(tl.int64) * values.each, mask, other)


@triton.jit
def hidden_zero():
    """Return a 0 that the compiler does not know to be constant."""
    return tl.minimum(tl.num_programs(0), 0)


@triton.jit
def start(value: tl.constexpr, dtype: tl.constexpr, S):
    """Return the initial value of a loop as [ROWS], in a form that the compiler does not know to be constant.

    Triton 3.6 fails if a loop begins with a constant and its result has two uses."""
    return tl.full([S.ROWS], value, dtype) + hidden_zero().to(dtype)


@triton.jit
def some(mask):
    return tl.max(mask.to(tl.int32), 0) > 0


class Store(NamedTuple):
    """Rows given by index. Row n of [S, K, V] is [n // K, n % K]; an index outside [0, N) names no row."""

    row: Any  # [positions]; None: rows are not given by index
    N: Any
    K: Any  # None: row n is at n * row_stride
    OF_POSITIONS: Any  # whether the side's stats are indexed by position, not by row of the store


class EntryIds(NamedTuple):
    """The ids of a draft's entries (ids.py)."""

    # int32 [rows, 3, k]: the ids in ascending order, the entry of each of these ids, and the id of each entry (-1:
    # none). Or the numbers of a VocabMap. None: entry v has id v.
    numbers: Any
    V: Any  # the number of target ids of a VocabMap; None: each row has its own numbers


class Views(NamedTuple):
    """The views of one side: a bias, penalties and a mask. A row's window is the drafted tokens before it."""

    GIVEN: Any  # whether there are any
    repetition: Any  # Values
    frequency: Any
    presence: Any
    ids: Any  # of lists: [S, H]; None: the histories are tables
    prompt_bits: Any  # of tables: [S, ceil(H / 32)]
    counts: Any  # [S, H]; None: there are no penalties
    S: Any
    H: Any
    marks_stride: Any  # of ids or prompt_bits
    counts_stride: Any
    row: Any  # Values: the index of each request's history; not given: history b is request b's
    bias_ids: Any  # [S, I]; None: there is no bias
    bias_values: Any
    bias_S: Any
    bias_n: Any
    bias_stride: Any  # between lists, in both ids and values
    bias_row: Any  # Values: the index of each request's or position's list (-1: no list); not given: in their order
    bias_request_stride: Any
    bias_position_stride: Any  # 0: one list per request
    words: Any  # [S, W]; None: there is no mask
    words_S: Any
    words_W: Any
    words_stride: Any
    words_row: Any  # Values, as bias_row
    words_request_stride: Any
    words_position_stride: Any
    window: Any  # the tokens of all windows: drafts [B, G] or [D] (ragged), or nodes [B, N]; None: there are none
    window_stride: Any  # between requests
    token_stride: Any
    starts: Any  # ragged: [B+1]; clamped to [0, D] when it is read
    D: Any
    parents: Any  # of a tree: [B, N]
    drafted: Any  # for rows [N, V]: the number of tokens in each window


@triton.jit
def number_of(store, index, there):
    """Return the index of a position's row; -1 if the position is not `there`."""
    return get_value(store.row + index, there, -1).to(tl.int64)


@triton.jit
def names_row(store, number):
    return (number >= 0) & (number < store.N)


@triton.jit
def offset_of(side, b, row):
    """Return the offset of a row. Triton derives its divisibility from the strides, so loads of rows can be wide."""
    row = tl.maximum(row, 0)
    if side.views.GIVEN:
        row &= 0xFFFFFFFF  # the upper half is a position: see views.py
    if side.store.row is None:
        return b * side.batch_stride + row * side.row_stride
    elif side.store.K is None:
        return row * side.row_stride
    else:
        return (row // side.store.K) * side.batch_stride + (row % side.store.K) * side.row_stride


@triton.jit
def stored_chunk(side, b, row, begin, mask, other, S):
    """Return WIDTH entries of rows from `begin` [ROWS] on, without views, as float32 [ROWS, WIDTH].

    Only this function and stored_entry read the memory of rows."""
    at = (offset_of(side, b, row) + begin)[:, None] + tl.arange(0, S.WIDTH)[None, :]
    return tl.load(side.data + at, mask=mask, other=other).to(tl.float32)


@triton.jit
def stored_entry(side, b, row, v, mask, other):
    """Return the entries v of rows without views, as float32."""
    return get_value(side.data + offset_of(side, b, row) + v, mask, other).to(tl.float32)


@triton.jit
def is_present(count, b):
    """Return whether row or request b is present. count [1]: how many are present; None: all."""
    if count is None:
        return b == b
    else:
        return b < tl.load(count)


@triton.jit
def span(cu_draft, b, G, D, exists):
    """Return the start and the number of request b's drafts, clamped to [0, D] and [0, G] whatever cu_draft holds."""
    start = get_value(cu_draft + b, exists, 0).to(tl.int64)
    end = get_value(cu_draft + b + 1, exists, 0).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), D)
    g = tl.minimum(tl.maximum(end - start, 0), tl.minimum(D - start, G))
    return start, g.to(tl.int32)

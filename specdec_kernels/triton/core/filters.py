# SPDX-License-Identifier: Apache-2.0
"""Exact filters without a sort.

The cutoff of top-k or top-p is the largest logit such that all logits from it up weigh enough together. Given a proven
lower bound of the cutoff, only chunks whose maximum reaches the bound are read. Usually few logits reach it. These are
copied into a contiguous list, and the cutoff is found by bisection over the ordered bits of a float. As long as there
are more logits than fit in the list, each step of the bisection reads the chunks themselves.

The cutoff of top-n-sigma needs the standard deviation of the row, for which all chunks are read again.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import start
from .row import FLT_MAX, LOG2E, before_each, by_row, chunk_sum, chunks_of, each, load_chunk, scaled, weight_of

LARGEST = tl.constexpr(2147483647)
ONE = tl.constexpr(
    float(1 << 38)
)  # weights are in fixed point: integer sums do not depend on their order, and 2^24 of them fit


class Block(NamedTuple):
    """The rows that a program filters at once, where their chunk sums begin (`at`), and the indices of their lists
    (`slot`).

    The fields each_... repeat a row's value for each of the chunks that are read together."""

    b: Any
    row: Any
    at: Any
    slot: Any
    each_b: Any
    each_row: Any
    each_at: Any
    each_slot: Any


@triton.jit
def ordered(z):
    """Return the bits of a float as an integer that orders as the float does; from_ordered() is the inverse."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def from_ordered(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def weigh(z, top, scale, WEIGHTED: tl.constexpr):
    if WEIGHTED:
        return (weight_of(scaled(z, top[:, None], (scale * LOG2E)[:, None])) * ONE).to(tl.int64)
    else:
        return tl.full(z.shape, 1, tl.int64)


@triton.jit
def middle(lo, hi):
    """Return the middle of lo and hi, rounded up and computed without overflow. It exceeds lo if lo < hi."""
    return (lo | hi) - ((lo ^ hi) >> 1)


@triton.jit
def split(key, weight, lo, hi, mid):
    """Return, for keys in [lo, hi], the weight from mid up, the smallest key from mid up, and the largest below mid."""
    up = (key >= mid[:, None]) & (key <= hi[:, None])
    down = (key >= lo[:, None]) & (key < mid[:, None])
    up_weight = tl.sum(tl.where(up, weight, 0), 1)
    return up_weight, tl.min(tl.where(up, key, LARGEST), 1), tl.max(tl.where(down, key, -2147483648), 1)


@triton.jit
def halve(lo, hi, above, up_weight, up_min, down_max, target):
    """Return the half of [lo, hi] that holds the crossing, shrunk to keys that exist, and the weight above it.

    The crossing is the largest key such that all keys from it up weigh at least `target` together."""
    reached = (above + up_weight).to(tl.float64) >= target
    missed = (lo < hi) & ~reached
    lower = tl.where((lo < hi) & reached, up_min, lo)
    upper = tl.where(missed, tl.maximum(down_max, lo), hi)
    return lower, upper, tl.where(missed, above + up_weight, above)


@triton.jit
def select(key, weight, lo, hi, above, target):
    """Return the largest key in [lo, hi] from which up the weight is at least `target`; lo if there is none. above: the
    weight of keys above hi."""
    while tl.max((lo < hi).to(tl.int32)) > 0:
        up_weight, up_min, down_max = split(key, weight, lo, hi, middle(lo, hi))
        lo, hi, above = halve(lo, hi, above, up_weight, up_min, down_max, target)
    return lo


@triton.jit
def list_chunks(side, block, lo, on, CLEAR: tl.constexpr, S):
    """Write the indices of chunks whose maximum is at least lo to `listed`, ascending, and return their number. CLEAR:
    set the sums of the other chunks to 0."""
    tl.debug_barrier()
    chunks = chunks_of(side)
    count = start(0, tl.int32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        inside = (c < chunks) & on[:, None]
        m = tl.load(side.scratch.maxes + block.at[:, None] + c, mask=inside, other=-float("inf"))
        reaches = inside & (m >= lo[:, None])
        place = count[:, None] + tl.cumsum(reaches.to(tl.int32), 1) - 1
        tl.store(side.scratch.listed + (block.slot * chunks)[:, None] + place, c + tl.zeros_like(place), mask=reaches)
        if CLEAR:
            tl.store(side.scratch.sums + block.at[:, None] + c, tl.zeros_like(m), mask=inside & ~reaches)
        count += tl.sum(reaches.to(tl.int32), 1)
    tl.debug_barrier()
    return count


@triton.jit
def load_listed(side, block, j, count, S):
    """Return TOGETHER listed chunks of each row, from the j-th of its list on, as [ROWS * TOGETHER, WIDTH].

    Two more results follow: the chunks' indices, and which of them exist."""
    place = j + tl.arange(0, S.ROWS * S.TOGETHER) % S.TOGETHER
    here = place < each(count, S)
    c = tl.load(side.scratch.listed + block.each_slot * chunks_of(side) + place, mask=here, other=0)
    return load_chunk(side, block.each_b, block.each_row, c, here, -float("inf"), S), c, here


@triton.jit
def collect(side, block, listed_count, lo, hi, S):
    """Copy the first FEW logits with keys in [lo, hi] to `few`, and return how many such logits there are in all."""
    tl.debug_barrier()
    count = tl.zeros([S.ROWS], tl.int32)
    for j in range(0, tl.max(listed_count), S.TOGETHER):
        z, _, here = load_listed(side, block, j, listed_count, S)
        key = ordered(z)
        inside = (key >= each(lo, S)[:, None]) & (key <= each(hi, S)[:, None]) & here[:, None]
        found = by_row(tl.sum(inside.to(tl.int32), 1), S)
        before = before_each(count, found, S)
        place = before[:, None] + tl.cumsum(inside.to(tl.int32), 1) - 1
        few = side.scratch.few + (block.each_slot * S.FEW)[:, None]
        tl.store(few + place, z, mask=inside & (place < S.FEW))
        count += tl.sum(found, 1)
    tl.debug_barrier()
    return count


@triton.jit
def split_listed(side, block, listed_count, lo, hi, top, scale, WEIGHTED: tl.constexpr, S):
    """Return split() of all listed chunks at the middle of [lo, hi], and the number of keys in the upper half."""
    mid = middle(lo, hi)
    up_weight = tl.zeros([S.ROWS], tl.int64)
    up_min = tl.full([S.ROWS], LARGEST, tl.int32)
    down_max = tl.full([S.ROWS], -2147483648, tl.int32)
    up_count = tl.zeros([S.ROWS], tl.int32)
    for j in range(0, tl.max(listed_count), S.TOGETHER):
        z, _, _ = load_listed(side, block, j, listed_count, S)
        key = ordered(z)
        weight = weigh(z, each(top, S), each(scale, S), WEIGHTED)
        low, high, half = each(lo, S), each(hi, S), each(mid, S)
        w, least, most = split(key, weight, low, high, half)
        up_weight += tl.sum(by_row(w, S), 1)
        up_min = tl.minimum(up_min, tl.min(by_row(least, S), 1))
        down_max = tl.maximum(down_max, tl.max(by_row(most, S), 1))
        upper = ((key >= half[:, None]) & (key <= high[:, None])).to(tl.int32)
        up_count += tl.sum(by_row(tl.sum(upper, 1), S), 1)
    return up_weight, up_min, down_max, up_count


@triton.jit
def crossing(side, block, lo_logit, top, scale, target, on, WEIGHTED: tl.constexpr, S):
    """Return the largest logit z* >= lo_logit with weight{z >= z*} >= target; lo_logit if there is none."""
    n = list_chunks(side, block, lo_logit, on, False, S)
    hi = ordered(top)
    lo = tl.where(on, ordered(lo_logit), hi)
    above = tl.zeros([S.ROWS], tl.int64)
    count = collect(side, block, n, lo, hi, S)
    if tl.max(count) > S.FEW:
        while tl.max(tl.where(lo < hi, count, 0)) > S.FEW:
            up_weight, up_min, down_max, up_count = split_listed(side, block, n, lo, hi, top, scale, WEIGHTED, S)
            reached = (above + up_weight).to(tl.float64) >= target
            count = tl.where(lo < hi, tl.where(reached, up_count, count - up_count), count)
            lo, hi, above = halve(lo, hi, above, up_weight, up_min, down_max, target)
        count = collect(side, block, n, lo, hi, S)
    place = tl.arange(0, S.FEW)[None, :]
    few = side.scratch.few + (block.slot * S.FEW)[:, None]
    z = tl.load(few + place, mask=place < count[:, None], other=-float("inf"))
    return from_ordered(select(ordered(z), weigh(z, top, scale, WEIGHTED), lo, hi, above, target))


@triton.jit
def top_k_bound(side, block, top_k, top, on, S):
    """Return a lower bound of the k-th largest logit: the k-th largest maximum of the first WIDTH chunks or, if there
    are fewer than k chunks, the k-th largest logit of the first chunk; -FLT_MAX if k is too large for that."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    chunks = chunks_of(side)
    by_chunk = top_k <= chunks
    inside = (lane < chunks) & (on & by_chunk)[:, None]
    m = tl.load(side.scratch.maxes + block.at[:, None] + lane, mask=inside, other=-float("inf"))
    first = tl.zeros([S.ROWS], tl.int32)
    z = load_chunk(side, block.b, block.row, first, on & ~by_chunk, -float("inf"), S)
    entries = tl.where(by_chunk[:, None], m, z)
    hi = ordered(top)
    lo = tl.where(on, ordered(tl.zeros([S.ROWS], tl.float32) - FLT_MAX), hi)
    zero = tl.zeros([S.ROWS], tl.int64)
    return from_ordered(
        select(ordered(entries), tl.full(entries.shape, 1, tl.int64), lo, hi, zero, top_k.to(tl.float64))
    )


@triton.jit
def deviation(side, block, top, on, S):
    """Return the standard deviation of each row's finite logits, computed from the same sums as in csrc/core/filters.h.

    One chunk is read at a time, since float64 takes twice the registers."""
    total, squares = start(0.0, tl.float64, S), start(0.0, tl.float64, S)
    count = start(0, tl.int32, S)
    most = top[:, None]
    for c in range(0, chunks_of(side)):
        z = load_chunk(side, block.b, block.row, tl.zeros([S.ROWS], tl.int32) + c, on, -float("inf"), S)
        finite = z > -float("inf")
        d = most.to(tl.float64) - tl.where(finite, z, most).to(tl.float64)
        total += tl.sum(d, 1)
        squares += tl.sum(d * d, 1)
        count += tl.sum(finite.to(tl.int32), 1)
    n = tl.maximum(count, 1).to(tl.float64)
    mean = total / n
    return tl.sqrt(tl.maximum(squares / n - mean * mean, 0.0))


@triton.jit(noinline=True)  # with penalties the caller has no registers to spare
def deviation_of_one(side, block, top, on, S):
    """Return deviation() for S.ROWS = 1. Triton cannot pass larger tensors to a function that is not inlined."""
    return deviation(side, block, top, on, S)


@triton.jit
def sum_kept(side, block, scale, cutoff, on, S):
    """Replace the chunk sums by sums over the kept logits."""
    on = on & (cutoff > -FLT_MAX)
    n = list_chunks(side, block, cutoff, on, True, S)
    for j in range(0, tl.max(n), S.TOGETHER):
        z, c, here = load_listed(side, block, j, n, S)
        _, total = chunk_sum(z, each(scale, S), each(cutoff, S))
        tl.store(side.scratch.sums + block.each_at + c, total, mask=here)
    tl.debug_barrier()

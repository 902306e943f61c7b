# SPDX-License-Identifier: Apache-2.0
"""Exact filters without a sort: the cutoff is the largest logit above which enough weight lies.

Only chunks whose maximum reaches a proven bound are read again. What reaches it is few logits as a rule: they are put side
by side and bisected over the ordered bits of a float; while there are more, the chunks themselves are bisected.
"""

import triton
import triton.language as tl

from .row import FLT_MAX, LOG2E, chunk_sum, load_chunk, scaled, weight_of

ONE = tl.constexpr(float(1 << 38))  # weights in fixed point: integer sums do not depend on their order; 2^24 of them fit


@triton.jit
def ordered(z):
    """Bits of a float, or back, in an order that agrees with <."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def from_ordered(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def spread(x, TOGETHER: tl.constexpr):
    """[ROWS] -> [ROWS * TOGETHER], each value for every chunk of its row that is read at once."""
    if TOGETHER == 1:
        return x
    else:
        return tl.reshape(tl.broadcast_to(x[:, None], [x.shape[0], TOGETHER]), [x.shape[0] * TOGETHER])


@triton.jit
def by_row(x, TOGETHER: tl.constexpr):
    """[ROWS * TOGETHER] -> [ROWS, TOGETHER]."""
    return tl.reshape(x, [x.shape[0] // TOGETHER, TOGETHER])


@triton.jit
def weigh(z, top, scale, WEIGHTED: tl.constexpr):
    if WEIGHTED:
        return (weight_of(scaled(z, top[:, None], (scale * LOG2E)[:, None])) * ONE).to(tl.int64)
    else:
        return tl.full(z.shape, 1, tl.int64)


@triton.jit
def middle(lo, hi):
    """Between lo (excluded) and hi, without overflow."""
    return (lo | hi) - ((lo ^ hi) >> 1)


@triton.jit
def split(key, weight, lo, hi, mid):
    """Of the keys in [lo, hi]: the weight from the middle up, the smallest key there, and the largest below."""
    up = (key >= mid[:, None]) & (key <= hi[:, None])
    down = (key >= lo[:, None]) & (key < mid[:, None])
    up_weight = tl.sum(tl.where(up, weight, 0), 1)
    return up_weight, tl.min(tl.where(up, key, 2147483647), 1), tl.max(tl.where(down, key, -2147483648), 1)


@triton.jit
def halve(lo, hi, above, up_weight, up_min, down_max, target):
    """The half of [lo, hi] that holds the crossing, drawn in to the keys that exist; `above` weighs what lies higher."""
    reached = (above + up_weight).to(tl.float64) >= target
    missed = (lo < hi) & ~reached
    lower = tl.where((lo < hi) & reached, up_min, lo)
    upper = tl.where(missed, tl.maximum(down_max, lo), hi)
    return lower, upper, tl.where(missed, above + up_weight, above)


@triton.jit
def select(key, weight, lo, hi, above, target):
    """The largest key in [lo, hi] from which up at least `target` lies; lo if there is none."""
    while tl.max((lo < hi).to(tl.int32)) > 0:
        up_weight, up_min, down_max = split(key, weight, lo, hi, middle(lo, hi))
        lo, hi, above = halve(lo, hi, above, up_weight, up_min, down_max, target)
    return lo


@triton.jit
def list_chunks(maxes, sums, at, chunks, lo, on, listed, list_at, CLEAR: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The chunks that reach lo, ascending, into `listed`; returns how many. CLEAR empties the sums of the others."""
    tl.debug_barrier()
    count = tl.zeros([ROWS], tl.int32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & on[:, None]
        m = tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        reaches = inside & (m >= lo[:, None])
        place = count[:, None] + tl.cumsum(reaches.to(tl.int32), 1) - 1
        tl.store(listed + list_at[:, None] + place, c + tl.zeros_like(place), mask=reaches)
        if CLEAR:
            tl.store(sums + at[:, None] + c, tl.zeros_like(m), mask=inside & ~reaches)
        count += tl.sum(reaches.to(tl.int32), 1)
    tl.debug_barrier()
    return count


@triton.jit
def load_listed(rows, offset, V, listed, list_at, j, count, TOGETHER: tl.constexpr, WIDTH: tl.constexpr):
    """The listed chunks of each row from the j-th on, TOGETHER of them -> [ROWS * TOGETHER, WIDTH], their numbers, and which there
    are. `offset` and `list_at` come spread."""
    place = j + tl.arange(0, offset.shape[0]) % TOGETHER
    here = place < spread(count, TOGETHER)
    c = tl.load(listed + list_at + place, mask=here, other=0)
    return load_chunk(rows, offset, V, c, here, -float("inf"), WIDTH), c, here


@triton.jit
def collect(
    rows, offset, V, listed, list_at, listed_count, lo, hi, few, few_at,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """The logits with keys in [lo, hi], the first FEW of them side by side into `few`; returns how many there are."""
    tl.debug_barrier()
    count = tl.zeros([ROWS], tl.int32)
    for j in range(0, tl.max(listed_count), TOGETHER):
        z, _, here = load_listed(rows, offset, V, listed, list_at, j, listed_count, TOGETHER, WIDTH)
        key = ordered(z)
        inside = (key >= spread(lo, TOGETHER)[:, None]) & (key <= spread(hi, TOGETHER)[:, None]) & here[:, None]
        found = by_row(tl.sum(inside.to(tl.int32), 1), TOGETHER)
        before = tl.reshape(count[:, None] + tl.cumsum(found, 1) - found, [ROWS * TOGETHER])
        place = before[:, None] + tl.cumsum(inside.to(tl.int32), 1) - 1
        tl.store(few + few_at[:, None] + place, z, mask=inside & (place < FEW))
        count += tl.sum(found, 1)
    tl.debug_barrier()
    return count


@triton.jit
def crossing(
    rows, offset, V, maxes, sums, at, chunks, listed, list_at, few, few_at, slot, lo_logit, top, scale, target, on, WEIGHTED: tl.constexpr,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """The largest logit z* >= lo with weight{z >= z*} >= target; lo, or the smallest above it, if there is none."""
    n = list_chunks(maxes, sums, at, chunks, lo_logit, on, listed, slot * chunks, False, ROWS, CHUNKS)
    hi = ordered(top)
    lo = tl.where(on, ordered(lo_logit), hi)
    above = tl.zeros([ROWS], tl.int64)
    count = collect(rows, offset, V, listed, list_at, n, lo, hi, few, few_at, TOGETHER, ROWS, WIDTH, FEW)
    if tl.max(count) > FEW:
        while tl.max(tl.where(lo < hi, count, 0)) > FEW:
            mid = middle(lo, hi)
            up_weight = tl.zeros([ROWS], tl.int64)
            up_min = tl.full([ROWS], 2147483647, tl.int32)
            down_max = tl.full([ROWS], -2147483648, tl.int32)
            up_count = tl.zeros([ROWS], tl.int32)
            for j in range(0, tl.max(n), TOGETHER):
                z, _, _ = load_listed(rows, offset, V, listed, list_at, j, n, TOGETHER, WIDTH)
                key = ordered(z)
                weight = weigh(z, spread(top, TOGETHER), spread(scale, TOGETHER), WEIGHTED)
                low, high, half = spread(lo, TOGETHER), spread(hi, TOGETHER), spread(mid, TOGETHER)
                w, least, most = split(key, weight, low, high, half)
                up_weight += tl.sum(by_row(w, TOGETHER), 1)
                up_min = tl.minimum(up_min, tl.min(by_row(least, TOGETHER), 1))
                down_max = tl.maximum(down_max, tl.max(by_row(most, TOGETHER), 1))
                upper = ((key >= half[:, None]) & (key <= high[:, None])).to(tl.int32)
                up_count += tl.sum(by_row(tl.sum(upper, 1), TOGETHER), 1)
            reached = (above + up_weight).to(tl.float64) >= target
            count = tl.where(lo < hi, tl.where(reached, up_count, count - up_count), count)
            lo, hi, above = halve(lo, hi, above, up_weight, up_min, down_max, target)
        count = collect(rows, offset, V, listed, list_at, n, lo, hi, few, few_at, TOGETHER, ROWS, WIDTH, FEW)
    place = tl.arange(0, FEW)[None, :]
    z = tl.load(few + (slot * FEW)[:, None] + place, mask=place < count[:, None], other=-float("inf"))
    return from_ordered(select(ordered(z), weigh(z, top, scale, WEIGHTED), lo, hi, above, target))


@triton.jit
def top_k_bound(rows, offset, V, maxes, at, chunks, top_k, top, on, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A logit that at least k reach: the k-th largest chunk maximum, or the k-th largest logit of the first chunk."""
    lane = tl.arange(0, WIDTH)[None, :]
    by_chunk = top_k <= chunks
    m = tl.load(maxes + at[:, None] + lane, mask=(lane < chunks) & (on & by_chunk)[:, None], other=-float("inf"))
    z = load_chunk(rows, offset, V, tl.zeros([ROWS], tl.int32), on & ~by_chunk, -float("inf"), WIDTH)
    some = tl.where(by_chunk[:, None], m, z)
    hi = ordered(top)
    lo = tl.where(on, ordered(tl.zeros([ROWS], tl.float32) - FLT_MAX), hi)
    zero = tl.zeros([ROWS], tl.int64)
    return from_ordered(select(ordered(some), tl.full(some.shape, 1, tl.int64), lo, hi, zero, top_k.to(tl.float64)))


@triton.jit
def keep(
    rows, offset, V, maxes, sums, at, sums_at, chunks, listed, list_at, slot, scale, cutoff, on,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Chunk sums of what is kept, in place of the sums of everything."""
    on = on & (cutoff > -FLT_MAX)
    n = list_chunks(maxes, sums, at, chunks, cutoff, on, listed, slot * chunks, True, ROWS, CHUNKS)
    for j in range(0, tl.max(n), TOGETHER):
        z, c, here = load_listed(rows, offset, V, listed, list_at, j, n, TOGETHER, WIDTH)
        _, total = chunk_sum(z, spread(scale, TOGETHER), spread(cutoff, TOGETHER))
        tl.store(sums + sums_at + c, total, mask=here)
    tl.debug_barrier()

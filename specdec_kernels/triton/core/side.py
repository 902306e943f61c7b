# SPDX-License-Identifier: Apache-2.0
"""The rows of one side as laws: csrc/core/side.h and law.h's Dist, for a block of requests."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..accept import is_draft_prob
from .filters import spread
from .row import FLT_MAX, chunk_sum, clean_prob, is_greedy, load_chunk, load_law, log_prob
from .row_stats import row_law
from .chunk_sums import parameter, scale_of


class Side(NamedTuple):
    """The rows of one side, and where the laws of a row are computed: the largest logit and the sum of each chunk."""

    rows: Any  # None: one-hot drafts alone
    V: Any
    batch_stride: Any
    row_stride: Any
    count: Any  # rows of a request
    stats: Any
    given: Any  # Parameters
    maxes: Any  # [B, chunks]
    sums: Any
    listed: Any
    few: Any  # [B, FEW]
    chunks: Any
    PROBS: Any


class Sizes(NamedTuple):
    TOGETHER: Any
    ROWS: Any
    WIDTH: Any
    CHUNKS: Any
    FEW: Any


class Dist(NamedTuple):
    """A law: a row of the request's side, or all mass on `hot` where that is not negative. Nothing where both are."""

    row: Any
    hot: Any
    scale: Any
    cutoff: Any
    log_norm: Any
    most: Any


@triton.jit
def one_hot(id):
    one = tl.full(id.shape, 1.0, tl.float32)
    return Dist(id * 0 - 1, id, one, one, one, one)


@triton.jit
def packed(d):
    """Row and token of a law in one number, 0 of nothing."""
    return ((d.hot + 1) << 32) + d.row + 1


@triton.jit
def unpacked(x, scale, cutoff, log_norm, most):
    return Dist((x & 0xFFFFFFFF) - 1, (x >> 32) - 1, scale, cutoff, log_norm, most)


@triton.jit
def choose(mask, a, b):
    return Dist(
        tl.where(mask, a.row, b.row), tl.where(mask, a.hot, b.hot), tl.where(mask, a.scale, b.scale),
        tl.where(mask, a.cutoff, b.cutoff), tl.where(mask, a.log_norm, b.log_norm), tl.where(mask, a.most, b.most),
    )  # fmt: skip


@triton.jit
def is_something(d):
    return (d.row >= 0) | (d.hot >= 0)


@triton.jit
def is_valid(side, d):
    if side.PROBS:
        return is_something(d)
    else:
        return is_something(d) & (d.log_norm == d.log_norm)


@triton.jit
def offset_of(side, b, row):
    """Where a row begins: what is known of the strides is known of this, so that loads of rows can be wide."""
    return b * side.batch_stride + tl.maximum(row, 0) * side.row_stride


@triton.jit
def prob(side, b, d, v, mask):
    """p of ids v and ln p, in float64."""
    inside = mask & (d.row >= 0) & (d.hot < 0) & (v >= 0) & (v < side.V)
    z = tl.load(side.rows + offset_of(side, b, d.row) + v, mask=inside, other=0.0).to(tl.float32)
    if side.PROBS:
        p = tl.where(inside, clean_prob(z), 0.0).to(tl.float64)
        x = tl.log(p)
    else:
        x = tl.where(inside, log_prob(z, d.scale, d.cutoff, d.log_norm, d.most), -float("inf"))
        p = tl.exp(x)
    is_hot = (d.hot >= 0) & (d.hot == v)
    return tl.where(is_hot, 1.0, p), tl.where(is_hot, 0.0, x)


@triton.jit
def draft_prob(q):
    """What a residual takes away: of what is not a probability nothing, of a rounded one one."""
    return tl.where(is_draft_prob(q), tl.minimum(q, 1.0), 0.0)


@triton.jit
def each(x, S):
    """Once for every chunk of a row that is read at once."""
    return spread(x, S.TOGETHER)


@triton.jit
def each_dist(d, S):
    return Dist(each(d.row, S), each(d.hot, S), each(d.scale, S), each(d.cutoff, S), each(d.log_norm, S), each(d.most, S))


@triton.jit
def each_request(S):
    return tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS * S.TOGETHER) // S.TOGETHER


@triton.jit
def chunks_from(begin, S):
    return begin + tl.arange(0, S.ROWS * S.TOGETHER) % S.TOGETHER


@triton.jit
def read_law(side, b, row, exists, T, S):
    """scale, cutoff, log_norm and max of rows; the chunks of what they keep stay in side.maxes and side.sums."""
    each_b = each_request(S)
    each_offset = offset_of(side, each_b, each(row, S))
    alive = each(exists, S)
    scale = scale_of(T)
    scale = each(tl.where(scale == float("inf"), 1.0, scale), S)  # a greedy row needs no sum, but its NaN must show
    cutoff = tl.zeros_like(scale) - FLT_MAX
    tl.debug_barrier()
    for begin in range(0, side.chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < side.chunks)
        z = load_chunk(side.rows, each_offset, side.V, c, here, -float("inf"), S.WIDTH)
        most, total = chunk_sum(z, scale, cutoff)
        tl.store(side.maxes + each_b * side.chunks + c, most, mask=here)
        tl.store(side.sums + each_b * side.chunks + c, total, mask=here)
    tl.debug_barrier()
    return row_law(
        side.rows, side.V, b, b, each_b, offset_of(side, b, row), each_offset, b * side.chunks, each_b * side.chunks, exists, side.given, T,
        side.maxes, side.sums, side.listed, side.few, side.chunks, S.TOGETHER, S.ROWS, S.WIDTH, S.CHUNKS, S.FEW,
    )  # fmt: skip


@triton.jit
def dist(side, b, row, on, GREEDY: tl.constexpr, S):
    """The laws of rows of the requests b: from their stats, or computed now. Nothing where there is no such row."""
    there = on & (row >= 0) & (row < side.count)
    hot = row * 0 - 1
    if side.PROBS and not GREEDY:
        scale = tl.full([S.ROWS], 1.0, tl.float32)
        cutoff = scale
        log_norm = scale
        most = scale
    else:
        if GREEDY:
            T = tl.zeros([S.ROWS], tl.float32)
            scale, cutoff, log_norm, most = read_law(side, b, row, there, T, S)
        elif side.stats is None:
            T = parameter(side.given.temperature, b, side.given.temperature_stride, there, 1.0)
            scale, cutoff, log_norm, most = read_law(side, b, row, there, T, S)
        else:
            scale, cutoff, log_norm, most = load_law(side.stats, b * side.count + row, there)
        is_hot = there & is_greedy(scale, log_norm, side.V)
        if side.PROBS:
            is_hot &= most > 0
        hot = tl.where(is_hot, tl.where(is_hot, log_norm, 0.0).to(tl.int64), -1)
    return Dist(tl.where(there, row, -1), hot, scale, cutoff, log_norm, most)

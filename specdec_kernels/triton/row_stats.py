# SPDX-License-Identifier: Apache-2.0
"""row_stats: the stats (four floats) of a row from its chunk sums, with its filters (csrc/core/filters.h).

A wide launch sums the chunks. In a second launch, a program per block of rows computes the stats."""

import torch
import triton
import triton.language as tl

from .core import launch
from .core.arguments import sampling, seen_rows
from .core.draw import first_chunk_with, first_lane_with
from .core.filters import ONE, Block, crossing, deviation, deviation_of_one, sum_kept, top_k_bound
from .core.ids import token_at
from .core.launch import put_absent
from .core.memory import load_value, some, start
from .core.row import (
    CHUNK,
    FLT_MAX,
    LOG2E,
    RowStats,
    Scratch,
    chunk_sum,
    chunks_from,
    chunks_of,
    each,
    each_request,
    load_chunk,
    scaled,
    store_stats,
    weight_of,
)
from .core.rows import from_stats, given_dist
from .core.views import locate


@triton.jit
def temperature_of(side, b, mask):
    return load_value(side.sampling.temperature, b, mask, 1.0)


@triton.jit
def is_cold(temperature):
    """Return whether a row is greedy. A subnormal temperature counts as 0, since its inverse may overflow."""
    return (temperature >= 0) & (temperature < 1.1754943508222875e-38)


@triton.jit
def scale_of(temperature):
    """Return 1 / T, rounded once; infinity for a greedy row. Otherwise it is at most 2^126, so that 2 log2(e) / T is
    finite."""
    cold = is_cold(temperature)
    return tl.where(cold, float("inf"), (1.0 / tl.where(cold, 1.0, temperature).to(tl.float64)).to(tl.float32))


@triton.jit
def row_max(side, at, exists, S):
    """Return the largest finite logit of the row (a zero as +0), and whether the row is invalid: NaN, +inf, or nothing
    finite."""
    chunks = chunks_of(side)
    top = start(-float("inf"), tl.float32, S)
    bad = start(0, tl.int32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(side.scratch.maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        top = tl.maximum(top, tl.max(m, 1))
        s = tl.load(side.scratch.sums + at[:, None] + c, mask=inside, other=0.0)
        bad = tl.maximum(bad, tl.max(tl.where(s < float("inf"), 0, 1), 1))
    return top + 0.0, (bad > 0) | (top == -float("inf"))


@triton.jit
def row_sum(side, at, top, scale, exists, S):
    """Return the sum of exp((z - top) * scale) over the row. Its chunk sums are added in float64."""
    chunks = chunks_of(side)
    total = start(0.0, tl.float64, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(side.scratch.maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        s = tl.load(side.scratch.sums + at[:, None] + c, mask=inside, other=0.0)
        share = s * weight_of(scaled(m, top[:, None], (scale * LOG2E)[:, None]))
        total += tl.sum(tl.where(s > 0, share, 0.0).to(tl.float64), 1)
    return total


@triton.jit
def filtered(side, b, block, T, scale, top, alive, S):
    """Return the cutoffs of rows. Their chunk sums become sums over the kept logits."""
    given = side.sampling
    top_p = load_value(given.top_p, b, alive, 1.0)
    cutoff = tl.zeros([S.ROWS], tl.float32) - FLT_MAX
    if given.top_n_sigma.data is not None:
        n = load_value(given.top_n_sigma, b, alive, 0.0)
        on = alive & (n > 0)
        if some(on):
            if S.ROWS == 1:
                sigma = deviation_of_one(side, block, top, on, S)
            else:
                sigma = deviation(side, block, top, on, S)
            least = top.to(tl.float64) - n.to(tl.float64) * sigma
            cutoff = tl.where(on, tl.maximum(cutoff, least.to(tl.float32)), cutoff)
    if given.min_p.data is not None:
        min_p = load_value(given.min_p, b, alive, 0.0)
        on = alive & (min_p > 0)
        least = top.to(tl.float64) + T.to(tl.float64) * tl.log(tl.where(on, min_p, 1.0).to(tl.float64))
        cutoff = tl.where(on, tl.maximum(cutoff, least.to(tl.float32)), cutoff)
    if given.top_k.data is not None:
        top_k = load_value(given.top_k, b, alive, 0).to(tl.int64)
        on = alive & (top_k > 0) & (top_k < side.V)
        if some(on):
            lo = tl.maximum(top_k_bound(side, block, top_k, top, on, S), cutoff)
            found = crossing(side, block, lo, top, scale, top_k.to(tl.float64), on, False, S)
            cutoff = tl.where(on, tl.maximum(cutoff, found), cutoff)
    if given.top_p.data is not None:
        on = alive & (top_p < 1)
        if some(on):
            sum_kept(side, block, scale, cutoff, on, S)
            total = row_sum(side, block.at, top, scale, on, S)
            # Even V logits below lo together weigh less than 1 - top_p of the total, so the cutoff is not below lo.
            p = top_p.to(tl.float64)
            reach = tl.log(tl.zeros_like(p) + side.V) - tl.log(tl.where(on, (1.0 - p) * total, 1.0))
            lo = (top.to(tl.float64) - reach * T.to(tl.float64) * 1.000001).to(tl.float32)
            found = crossing(side, block, tl.maximum(cutoff, lo), top, scale, p * total * ONE, on, True, S)
            cutoff = tl.where(on, tl.maximum(cutoff, found), cutoff)
    sum_kept(side, block, scale, cutoff, alive, S)
    return cutoff


@triton.jit
def sane(side, b, T, mask):
    """Return whether the parameters are valid. On a device an invalid one cannot raise; it makes the row invalid."""
    top_p = load_value(side.sampling.top_p, b, mask, 1.0)
    min_p = load_value(side.sampling.min_p, b, mask, 0.0)
    n = load_value(side.sampling.top_n_sigma, b, mask, 0.0)
    others = (top_p > 0) & (top_p <= 1) & (min_p >= 0) & (min_p <= 1) & (n >= 0) & (n <= FLT_MAX)
    return (T >= 0) & (T <= FLT_MAX) & others


@triton.jit
def stats_of(side, b, block, exists, T, S):
    """Return the four floats of rows whose chunks have been summed."""
    scale = scale_of(T)
    greedy = is_cold(T)
    finite_scale = tl.where(greedy, 1.0, scale)
    top, bad = row_max(side, block.at, exists, S)
    bad = bad | ~sane(side, b, T, exists)
    alive = exists & ~bad & ~greedy
    cutoff = tl.zeros([S.ROWS], tl.float32) - FLT_MAX
    if side.scratch.few is not None:
        cutoff = filtered(side, b, block, T, finite_scale, top, alive, S)
    total = row_sum(side, block.at, top, finite_scale, alive, S)
    log_norm = tl.log(tl.where(alive, total, 1.0)).to(tl.float32)
    argmax = exists & ~bad & greedy
    if some(argmax):
        c = first_chunk_with(side.scratch.maxes, block.at, chunks_of(side), top, argmax, S)
        z = load_chunk(side, block.b, block.row, c, argmax, -float("inf"), S)
        id = token_at(side, block.b, block.row, c * CHUNK + first_lane_with(z, top, S), argmax)
        log_norm = tl.where(argmax, id.to(tl.float32), log_norm)
        cutoff = tl.where(argmax, top, cutoff)
    return RowStats(scale, cutoff + 0.0, tl.where(bad, float("nan"), log_norm), top)


@triton.jit
def read_stats(side, b, row, exists, T, S):
    """Return the four floats of a row of each request. The chunk sums of the kept logits stay in side.scratch."""
    chunks = chunks_of(side)
    each_b = each_request(S)
    each_row = each(row, S)
    alive = each(exists, S)
    scale = scale_of(T)
    scale = each(tl.where(scale == float("inf"), 1.0, scale), S)  # a greedy row is summed only to find NaN and +inf
    cutoff = tl.zeros_like(scale) - FLT_MAX
    tl.debug_barrier()
    for begin in range(0, chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < chunks)
        z = load_chunk(side, each_b, each_row, c, here, -float("inf"), S)
        most, total = chunk_sum(z, scale, cutoff)
        tl.store(side.scratch.maxes + each_b * chunks + c, most, mask=here)
        tl.store(side.scratch.sums + each_b * chunks + c, total, mask=here)
    tl.debug_barrier()
    block = Block(b, row, b * chunks, b, each_b, each_row, each_b * chunks, each_b)
    return stats_of(side, b, block, exists, T, S)


@triton.jit
def dist(side, b, row, index, there, GREEDY: tl.constexpr, S):
    """Return the distributions of rows of the requests b; no distribution where `there` is not set. The stats of
    logits are read at `index` if they are given, and computed otherwise. GREEDY: compute stats at temperature 0."""
    if GREEDY:
        return from_stats(side, row, read_stats(side, b, row, there, tl.zeros([S.ROWS], tl.float32), S), there)
    elif side.PROBS or side.stats is not None:
        return given_dist(side, row, index, there)
    else:
        return from_stats(side, row, read_stats(side, b, row, there, temperature_of(side, b, there), S), there)


@launch.kernel
def scan_kernel(rows, B, G, bonus, D, cu_draft, count, per_program, S: tl.constexpr):
    """Compute each chunk's largest finite logit, and its sum of exponentials relative to that logit."""
    slot = tl.program_id(0) * S.ROWS + tl.arange(0, S.ROWS)
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    if rows.stats is None:
        scale = scale_of(temperature_of(rows, b, exists))
        cutoff = tl.zeros([S.ROWS], tl.float32) - FLT_MAX
    else:
        scale = tl.load(rows.stats + index * 4, mask=exists, other=1.0)
        cutoff = tl.load(rows.stats + index * 4 + 1, mask=exists, other=0.0)
    scale = tl.where(scale == float("inf"), 1.0, scale)  # a greedy row is summed only to find NaN and +inf
    chunks = chunks_of(rows)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z = load_chunk(rows, b, row, tl.zeros([S.ROWS], tl.int32) + c, exists, -float("inf"), S)
        most, total = chunk_sum(z, scale, cutoff)
        tl.store(rows.scratch.maxes + index * chunks + c, most, mask=exists)
        tl.store(rows.scratch.sums + index * chunks + c, total, mask=exists)


@launch.kernel
def stats_kernel(rows, B, G, bonus, D, cu_draft, count, out, S: tl.constexpr):
    first = tl.program_id(0) * S.ROWS
    slot = first + tl.arange(0, S.ROWS)
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    each = first + tl.arange(0, S.ROWS * S.TOGETHER) // S.TOGETHER
    each_b, each_row, each_index, _ = locate(each, rows, B, G, bonus, D, cu_draft, count)
    chunks = chunks_of(rows)
    block = Block(
        b, row, index * chunks, slot.to(tl.int64),
        each_b, each_row, each_index * chunks, each.to(tl.int64),
    )  # fmt: skip
    stats = stats_of(rows, b, block, exists, temperature_of(rows, b, exists), S)
    store_stats(out, index, stats, exists)


def scan(rows, layout: launch.Layout, sampling, stats: torch.Tensor | None, store=launch.NO_STORE) -> Scratch:
    """Return a Scratch with the largest finite logit and the sum of exponentials of every chunk of one side's rows."""
    table = launch.table(rows.V)
    scratch = launch.scratch(rows, layout.rows, layout.slots, table.few if sampling.filters() else None)
    side = launch.rows(rows, stats=stats, sampling=sampling, scratch=scratch, layout=layout, store=store)
    launch.run_chunks(scan_kernel, table, layout.slots, side, *layout.arguments())
    return scratch


def find_stats(
    rows, layout: launch.Layout, sampling, store=launch.NO_STORE, stats: torch.Tensor | None = None
) -> tuple[torch.Tensor, Scratch]:
    """Compute the stats [positions, 4] of one side, in `stats` if that is given. Return them, and the chunk sums of the
    kept logits."""
    scratch = scan(rows, layout, sampling, None, store)
    stats = launch.empty(rows, (layout.rows, 4), torch.float32) if stats is None else stats
    side = launch.rows(rows, sampling=sampling, scratch=scratch, layout=layout, store=store)
    launch.run_rows(stats_kernel, launch.table(rows.V), layout.slots, side, *layout.arguments(), stats)
    return stats, scratch


def row_stats(stats, logits, temperature, top_k, top_p, min_p, top_n_sigma, numbers, num_rows, views, drafted, ids):
    layout = launch.Layout.flat(logits.size(0), num_rows)
    rows = seen_rows(logits, views, drafted, ids, num_rows)
    find_stats(rows, layout, sampling(temperature, top_k, top_p, min_p, top_n_sigma, numbers), stats=stats)
    put_absent(num_rows, (stats, 0))

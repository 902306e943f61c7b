# SPDX-License-Identifier: Apache-2.0
"""sample: k draws from a row's law, independent or without replacement. The stats' launches, then a program per row draws."""

import torch
import triton
import triton.language as tl

from .core import check
from .core import launch
from .core.final_token import has_mass, pick_chunk, pick_lane, total_mass
from .core.row import (
    CHUNK,
    ENOUGH,
    LOG2E,
    chunk_sum,
    first_chunk_with,
    first_lane_with,
    is_greedy,
    lane_of,
    load_chunk,
    load_law,
    log_prob,
    probs,
    scaled,
    weight_of,
)
from .core.philox import DOMAIN_DRAFT, given_uniform, uniform
from .row_stats import laws, scan


@triton.jit
def load_or(values, n, stride, exists):
    """Integers of the rows n; zeros where none are given."""
    if values is None:
        return n * 0
    else:
        return tl.load(values + n * stride, mask=exists, other=0).to(tl.int64)


@triton.jit
def draw_uniforms(n, draws, k, seed, seed_stride, offsets, offset_stride, slots, slot_stride, uniforms, exists):
    """The uniforms of all draws of the rows n."""
    if uniforms is not None:
        return given_uniform(tl.load(uniforms + (n * k)[:, None] + draws, mask=exists[:, None] & (draws < k), other=0.0))
    elif seed is not None:
        s = load_or(seed, n, seed_stride, exists)[:, None] + draws * 0
        o = load_or(offsets, n, offset_stride, exists)[:, None] + draws * 0
        return uniform(s, o, DOMAIN_DRAFT, load_or(slots, n, slot_stride, exists)[:, None] + draws)
    else:
        return (n[:, None] * draws * 0).to(tl.float64)


@triton.jit
def to_masses(maxes, sums, at, chunks, top, scale, exists, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """Chunk sums relative to each chunk's maximum become relative to the row's; returns the row's largest finite logit."""
    most = tl.full([ROWS], -float("inf"), tl.float32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        s = tl.load(sums + at[:, None] + c, mask=inside, other=0.0)
        share = s * weight_of(scaled(m, top[:, None], (scale * LOG2E)[:, None]))
        tl.store(sums + at[:, None] + c, tl.where(s == 0, 0.0, share), mask=inside)
        most = tl.maximum(most, tl.max(m, 1))
    tl.debug_barrier()
    return most


@triton.jit
def measure_anew(
    rows, offset, V, tokens, num_taken, scale, cutoff, maxes, masses, at, chunks, on, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr
):  # fmt: skip
    """What is left of rows of logits without the tokens that were drawn: the largest logit that is, and chunk sums in its units, so that
    nothing is lost however little that weighs."""
    lane = tl.arange(0, WIDTH)[None, :]
    finite_scale = tl.where(on, scale, 1.0)
    for c in range(0, chunks):
        each_c = tl.zeros([ROWS], tl.int32) + c
        z = load_chunk(rows, offset, V, each_c, on, -float("inf"), WIDTH)
        for j in range(0, num_taken):
            taken = tl.load(tokens + j, mask=on, other=-1)
            z = tl.where(lane == lane_of(taken, each_c)[:, None], -float("inf"), z)
        most, mass = chunk_sum(tl.where(z >= cutoff[:, None], z, -float("inf")), finite_scale, cutoff)
        tl.store(maxes + at + c, most, mask=on)
        tl.store(masses + at + c, mass, mask=on)
    tl.debug_barrier()
    top = tl.full([ROWS], -float("inf"), tl.float32)
    for begin in range(0, chunks, CHUNKS):
        every = begin + tl.arange(0, CHUNKS)[None, :]
        top = tl.maximum(top, tl.max(tl.load(maxes + at[:, None] + every, mask=on[:, None] & (every < chunks), other=-float("inf")), 1))
    to_masses(maxes, masses, at, chunks, top, finite_scale, on, ROWS, CHUNKS)
    return top, total_mass(masses, at, chunks, on, ROWS, CHUNKS)


@launch.kernel
def draw_kernel(
    rows, V, row_stride, N, stats, maxes, masses, chunks, seed, seed_stride, offsets, offset_stride, slots, slot_stride, uniforms,
    tokens, logprobs, k, REPLACEMENT: tl.constexpr, DRAWS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = n < N
    at = n * chunks
    lane = tl.arange(0, WIDTH)[None, :]
    scale, cutoff, log_norm, top = load_law(stats, n, exists)
    greedy = is_greedy(scale, log_norm, V)
    most = to_masses(maxes, masses, at, chunks, top, tl.where(scale == float("inf"), 1.0, scale), exists, ROWS, CHUNKS)
    total = total_mass(masses, at, chunks, exists, ROWS, CHUNKS)
    valid = (log_norm == log_norm) & (greedy | has_mass(total))
    largest = n * 0
    lost = exists & ~valid
    if tl.max(lost.to(tl.int32)) > 0:
        c = first_chunk_with(maxes, at, chunks, most, lost, ROWS, CHUNKS)
        z = load_chunk(rows, n * row_stride, V, c, lost, -float("inf"), WIDTH)
        largest = c.to(tl.int64) * CHUNK + first_lane_with(z, most, WIDTH)
    drawing = exists & valid & ~greedy
    draws = tl.arange(0, DRAWS)[None, :]
    # What needs no draw: a greedy row's argmax, once if without replacement, and the largest finite entry of a row that is no law.
    gone = greedy[:, None] & (draws > 0) & (not REPLACEMENT)
    fixed = tl.where(greedy, tl.where(greedy, log_norm, 0.0).to(tl.int64), largest)[:, None]
    known = tl.where(greedy, 0.0, float("nan"))[:, None]
    place = (n * k)[:, None] + draws
    others = (exists & ~drawing)[:, None] & (draws < k)
    tl.store(tokens + place, tl.where(gone, -1, fixed), mask=others)
    tl.store(logprobs + place, tl.where(gone, -float("inf"), known), mask=others)

    u = draw_uniforms(n, draws, k, seed, seed_stride, offsets, offset_stride, slots, slot_stride, uniforms, exists)
    # Chunk sums are in units of the row's largest logit, or of the largest that was left when they were measured anew.
    unit = top
    measured = total
    for i in range(0, k):
        target = tl.sum(tl.where(draws == i, u, 0.0), 1) * total
        c, into, mass = pick_chunk(masses, at, chunks, target, drawing, ROWS, CHUNKS)
        z = load_chunk(rows, n * row_stride, V, c, drawing, -float("inf"), WIDTH)
        w = probs(z, scale, cutoff, tl.zeros([ROWS], tl.float32), unit)
        if not REPLACEMENT:
            for j in range(0, i):
                taken = tl.load(tokens + n * k + j, mask=drawing, other=-1)
                w = tl.where(lane == lane_of(taken, c)[:, None], 0.0, w)
        here = pick_lane(w, into, mass, WIDTH)
        token = c.to(tl.int64) * CHUNK + here
        z_token = tl.load(rows + n * row_stride + token, mask=drawing, other=0.0).to(tl.float32)
        logprob = log_prob(z_token, scale, cutoff, log_norm, top).to(tl.float32)
        if not REPLACEMENT:
            left = total > 0
            token = tl.where(left, token, -1)
            logprob = tl.where(left, logprob, -float("inf"))
            # The chunk is summed again rather than subtracted from: what is left of it may be far smaller than what was taken.
            rest = tl.sum(tl.where(lane == here[:, None], 0.0, w), 1)
            tl.store(masses + at + c, rest, mask=drawing & left)
        tl.store(tokens + n * k + i, token, mask=drawing)
        tl.store(logprobs + n * k + i, logprob, mask=drawing)
        if not REPLACEMENT:
            tl.debug_barrier()
            total = total_mass(masses, at, chunks, drawing, ROWS, CHUNKS)
            few = drawing & left & (total < measured * ENOUGH)
            if (tl.max(few.to(tl.int32)) > 0) & (i + 1 < k):
                largest_left, total_left = measure_anew(
                    rows, n * row_stride, V, tokens + n * k, i + 1, scale, cutoff, maxes, masses, at, chunks, few, ROWS, WIDTH, CHUNKS
                )
                unit = tl.where(few, largest_left, unit)
                total = tl.where(few, total_left, total)
                measured = tl.where(few, total_left, measured)


def sample(logits, stats, k, replacement, temperature, top_k, top_p, min_p, seed, offset, slot, uniforms):
    op = "sample"
    check.given(op, logits=logits)
    check.dim(op, "logits", logits, 2)
    N = logits.size(0)
    rows = check.rows(op, "logits", logits)
    check.that(k >= 0, op, f"k must be >= 0, got {k}")
    check.that(k <= 1 << 33, op, f"k must be at most 2^33, got {k}")
    sampling = check.sampling(op, "", temperature, top_k, top_p, min_p, logits)
    if stats is not None:
        check.that(not sampling.given(), op, "stats already hold the sampling parameters: give one or the other")
        check.shape(op, "stats", stats, N, 4)
        check.stats(op, "stats", stats, logits)
    check.uniforms(op, uniforms, N, k, logits)
    seeds, offsets, slots = (check.per_row(op, name, t, N, logits) for name, t in (("seed", seed), ("offset", offset), ("slot", slot)))
    check.together(op, seed, offset)
    given = (uniforms, seed, temperature, stats)
    check.that(any(x is not None for x in given), op, "needs seed and offset, or uniforms, got neither")

    layout = launch.Layout.flat(N)
    if stats is None:
        stats_out, sums = laws(rows, layout, sampling)
    else:
        stats_out, sums = stats.clone(), scan(rows, layout, sampling, stats)
    tokens = torch.empty((N, k), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((N, k), dtype=torch.float32, device=logits.device)
    if N and k:
        table = launch.table(rows.V)
        launch.run(
            draw_kernel, (launch.blocks(N, table.rows),), table.row_threads, logits, rows.V, rows.row_stride, N, stats_out, sums.maxes,
            sums.sums, sums.chunks, *seeds, *offsets, *slots, uniforms, tokens, logprobs, k,
            REPLACEMENT=replacement, DRAWS=launch.power_of_2(k), ROWS=table.rows, WIDTH=table.width, CHUNKS=table.chunks,
        )  # fmt: skip
    return tokens, logprobs, stats_out

# SPDX-License-Identifier: Apache-2.0
"""sample: k draws from a row's distribution, independent or without replacement.

The stats and the chunk sums that are needed come from launches of row_stats. Then a program per block of rows draws, or
a race is run (core/race.py)."""

import triton
import triton.language as tl

from .core import launch
from .core.arguments import noise, sampling, seen_rows, values
from .core.draw import (
    DOMAIN_DRAFT,
    Random,
    first_chunk_with,
    first_lane_with,
    has_mass,
    largest_of,
    pick_chunk,
    pick_lane,
    total_mass,
    uniform_of,
)
from .core.ids import holds, repeats, token_at
from .core.launch import put_absent
from .core.memory import is_present, load_value, some, start
from .core.race import run_race
from .core.row import (
    CHUNK,
    ENOUGH,
    LOG2E,
    Dist,
    RowStats,
    chunk_sum,
    chunks_of,
    is_greedy,
    load_chunk,
    load_entry,
    load_stats,
    log_prob,
    probs,
    row_seen,
    scaled,
    vocabulary,
    weight_of,
)
from .core.rows import prob
from .row_stats import find_stats, scan


@triton.jit
def to_masses(rows, at, top, scale, exists, S):
    """Rescale the chunk sums, each relative to its chunk's maximum, to be relative to the logit `top`. Return the row's
    largest finite logit."""
    chunks = chunks_of(rows)
    most = start(-float("inf"), tl.float32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(rows.scratch.maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        s = tl.load(rows.scratch.sums + at[:, None] + c, mask=inside, other=0.0)
        share = s * weight_of(scaled(m, top[:, None], (scale * LOG2E)[:, None]))
        tl.store(rows.scratch.sums + at[:, None] + c, tl.where(s == 0, 0.0, share), mask=inside)
        most = tl.maximum(most, tl.max(m, 1))
    tl.debug_barrier()
    return most


@triton.jit
def measure_anew(rows, n, stats, tokens, num_taken, on, S):
    """Sum rows of logits again without the drawn tokens. Return the largest logit that is left, and the total.

    Chunk sums become relative to that logit, so they do not underflow however little is left."""
    chunks = chunks_of(rows)
    at = n * chunks
    finite_scale = tl.where(on, stats.scale, 1.0)
    for c in range(0, chunks):
        each_c = tl.zeros([S.ROWS], tl.int32) + c
        z = load_chunk(rows, n, row_seen(rows, n), each_c, on, -float("inf"), S)
        for j in range(0, num_taken):
            taken = tl.load(tokens + j, mask=on, other=-1)
            z = tl.where(holds(rows, n, row_seen(rows, n), each_c, taken, on, S), -float("inf"), z)
        kept = tl.where(z >= stats.cutoff[:, None], z, -float("inf"))
        most, mass = chunk_sum(kept, finite_scale, stats.cutoff)
        tl.store(rows.scratch.maxes + at + c, most, mask=on)
        tl.store(rows.scratch.sums + at + c, mass, mask=on)
    tl.debug_barrier()
    top = largest_of(rows.scratch.maxes, at, chunks, on, S)
    to_masses(rows, at, top, finite_scale, on, S)
    return top, total_mass(rows.scratch.sums, at, chunks, on, S)


@triton.jit
def put_known(
    rows, n, stats, most, invalid, fixed, tokens, logprobs, k, REPLACEMENT: tl.constexpr, DRAWS: tl.constexpr, S
):
    """Write the results of rows that need no draw (`fixed`): the argmax of a greedy row (without replacement only
    once), and the id of the largest finite entry of an invalid row."""
    greedy = is_greedy(stats, vocabulary(rows))
    largest = n * 0
    if some(invalid):
        c = first_chunk_with(rows.scratch.maxes, n * chunks_of(rows), chunks_of(rows), most, invalid, S)
        z = load_chunk(rows, n, row_seen(rows, n), c, invalid, -float("inf"), S)
        finite = invalid & (most > -float("inf"))
        largest = token_at(rows, n, row_seen(rows, n), c.to(tl.int64) * CHUNK + first_lane_with(z, most, S), finite)
    draws = tl.arange(0, DRAWS)[None, :]
    gone = greedy[:, None] & (draws > 0) & (not REPLACEMENT)
    token = tl.where(greedy, tl.where(greedy, stats.log_norm, 0.0).to(tl.int64), largest)[:, None]
    known = tl.where(greedy, 0.0, float("nan"))[:, None]
    place = (n * k)[:, None] + draws
    fixed = fixed[:, None] & (draws < k)
    tl.store(tokens + place, tl.where(gone, -1, token), mask=fixed)
    tl.store(logprobs + place, tl.where(gone, -float("inf"), known), mask=fixed)


@triton.jit
def without_taken(rows, n, w, tokens, num_taken, c, on, S):
    for j in range(0, num_taken):
        taken = tl.load(tokens + j, mask=on, other=-1)
        w = tl.where(holds(rows, n, row_seen(rows, n), c, taken, on, S), 0.0, w)
    return w


@triton.jit
def draw(rows, n, stats, drawing, total, u, tokens, logprobs, k, REPLACEMENT: tl.constexpr, DRAWS: tl.constexpr, S):
    chunks = chunks_of(rows)
    at = n * chunks
    lane = tl.arange(0, S.WIDTH)[None, :]
    # Chunk sums are relative to `unit`: the row's largest logit, or the largest one left when they were last summed.
    unit = stats.max
    measured = total
    for i in range(0, k):
        target = tl.sum(tl.where(tl.arange(0, DRAWS)[None, :] == i, u, 0.0), 1) * total
        c, into, mass = pick_chunk(rows.scratch.sums, at, chunks, target, drawing, S)
        z = load_chunk(rows, n, row_seen(rows, n), c, drawing, -float("inf"), S)
        w = probs(z, RowStats(stats.scale, stats.cutoff, tl.zeros([S.ROWS], tl.float32), unit))
        if not REPLACEMENT:
            w = without_taken(rows, n, w, tokens + n * k, i, c, drawing, S)
        here = pick_lane(w, into, mass, S)
        token = token_at(rows, n, row_seen(rows, n), c.to(tl.int64) * CHUNK + here, drawing)
        mine = lane == here[:, None]
        if rows.ids.numbers is None:
            logprob = log_prob(load_entry(rows, n, row_seen(rows, n), token, drawing, 0.0), stats).to(tl.float32)
        else:
            mine = holds(rows, n, row_seen(rows, n), c, token, drawing, S)
            _, log_q = prob(rows, n, Dist(row_seen(rows, n), n * 0 - 1, stats), token, drawing)
            logprob = log_q.to(tl.float32)
        if not REPLACEMENT:
            left = total > 0
            token = tl.where(left, token, -1)
            logprob = tl.where(left, logprob, -float("inf"))
            # The rest of the chunk is summed again. If it is far smaller than the weight of the drawn token, a
            # subtraction would lose it to rounding.
            rest = tl.sum(tl.where(mine, 0.0, w), 1)
            tl.store(rows.scratch.sums + at + c, rest, mask=drawing & left)
        tl.store(tokens + n * k + i, token, mask=drawing)
        tl.store(logprobs + n * k + i, logprob, mask=drawing)
        if not REPLACEMENT:
            tl.debug_barrier()
            total = total_mass(rows.scratch.sums, at, chunks, drawing, S)
            few = drawing & left & (total < measured * ENOUGH)
            if rows.ids.numbers is not None:  # other chunks may have entries of the token
                few |= repeats(rows, n, row_seen(rows, n), token, drawing & left & (n * 0 + chunks > 1))
            if some(few) & (i + 1 < k):
                largest_left, total_left = measure_anew(rows, n, stats, tokens + n * k, i + 1, few, S)
                unit = tl.where(few, largest_left, unit)
                total = tl.where(few, total_left, total)
                measured = tl.where(few, total_left, measured)


@launch.kernel
def draw_kernel(
    rows, N, count, random, slots, first_slot, tokens, logprobs, k,
    REPLACEMENT: tl.constexpr, DRAWS: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (n < N) & is_present(count, n)
    chunks = chunks_of(rows)
    stats = load_stats(rows.stats, n, exists)
    greedy = is_greedy(stats, vocabulary(rows))
    finite_scale = tl.where(stats.scale == float("inf"), 1.0, stats.scale)
    most = to_masses(rows, n * chunks, stats.max, finite_scale, exists, S)
    total = total_mass(rows.scratch.sums, n * chunks, chunks, exists, S)
    valid = (stats.log_norm == stats.log_norm) & (greedy | has_mass(total))
    drawing = exists & valid & ~greedy
    put_known(rows, n, stats, most, exists & ~valid, exists & ~drawing, tokens, logprobs, k, REPLACEMENT, DRAWS, S)
    i = tl.arange(0, DRAWS)[None, :]
    slot = load_value(slots, n, exists, 0).to(tl.int64)[:, None] + first_slot + i
    u = uniform_of(random, n[:, None], i, k, DOMAIN_DRAFT, slot, exists[:, None] & (i < k))
    draw(rows, n, stats, drawing, total, u, tokens, logprobs, k, REPLACEMENT, DRAWS, S)


def sample(
    results, logits, temperature, top_k, top_p, min_p, top_n_sigma, numbers, stats, k, replacement, seed, offset, slot,
    first_slot, uniforms, num_rows, race, views, drafted, ids,
):  # fmt: skip
    tokens, logprobs, stats_out = results
    N, layout = logits.size(0), launch.Layout.flat(logits.size(0), num_rows)
    rows = seen_rows(logits, views, drafted, ids, num_rows)
    given = sampling(temperature, top_k, top_p, min_p, top_n_sigma, numbers)
    if stats is None:
        _, scratch = find_stats(rows, layout, given, stats=stats_out)
    else:
        stats_out.copy_(stats)
        scratch = launch.NO_SCRATCH if race else scan(rows, layout, given, stats)
    if race:
        side = launch.rows(rows, stats=stats_out, layout=layout)
        run_race(side, layout, noise(seed, offset), tokens, logprobs, k)
    elif k:
        table = launch.table(rows.V)
        side = launch.rows(rows, stats=stats_out, scratch=scratch._replace(listed=None, few=None))
        random = Random(values(seed), values(offset), uniforms)
        args = (side, N, num_rows, random, values(slot), first_slot, tokens, logprobs, k)
        launch.run_rows(draw_kernel, table, N, *args, REPLACEMENT=replacement, DRAWS=launch.power_of_2(k))
    put_absent(num_rows, (tokens, -1), (logprobs, 0), (stats_out, 0))

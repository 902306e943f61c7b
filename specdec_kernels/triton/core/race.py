# SPDX-License-Identifier: Apache-2.0
"""The race (csrc/core/race.h): the choice of the id with the largest key ln p + noise. The noise of an id is
-ln(-ln u) of its uniform u.

Keys are float64, and few are computed. Since -ln u >= 1 - u, the noise is at most -ln(1 - u). Only an id whose bound
ln p - ln(1 - u) reaches the best key so far gets a key.

run_race() finds the winner of each chunk in a wide launch, then the best of these in a launch with a program per block
of rows. winner() runs a whole race in one program.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from . import launch
from .draw import DOMAIN_NOISE, Random, first_chunk_with, first_lane_with, philox, uniform
from .ids import BOUND, LOG_PROB, add_up, merged_chunk, places_of, token_at, weight_bound
from .memory import get_value, load_value, put_value, some, start
from .row import (
    CHUNK,
    Rows,
    RowStats,
    by_row,
    chunks_from,
    chunks_of,
    clean_prob,
    each,
    each_request,
    finite_max,
    load_chunk,
    log_prob,
)
from .rows import each_dist, given_dist, is_valid, prob
from .views import locate


class Noise(NamedTuple):
    """The noise of all ids at one position."""

    seed: Any
    position: Any


class Racers(NamedTuple):
    """The winners of chunks. A key of -inf means that there is none, NaN that the row is invalid."""

    keys: Any
    ids: Any


@triton.jit
def noise_at(random, b, after, key, mask):
    """Return the Noise of token number `after`, from 0, of each request b. Without offsets, return that of the noise
    keys at the indices `key`. Positions wrap around."""
    if random.seed.data is None:
        return Noise(b * 0, b * 0)
    elif random.offset.data is None:
        return Noise(get_value(random.seed.data + key * random.seed.each, mask, 0).to(tl.int64), b * 0)
    else:
        seed = load_value(random.seed, b, mask, 0).to(tl.int64)
        return Noise(seed, load_value(random.offset, b, mask, 0).to(tl.int64) + after)


@triton.jit
def gumbel(noise, id):
    """Return the noise -ln(-ln u) of ids. u is the middle of one of 2^52 equal parts of (0, 1)."""
    u = tl.floor(uniform(noise.seed, noise.position, DOMAIN_NOISE, id) * 4503599627370496.0) + 0.5
    return -tl.log(-tl.log(u * 2.220446049250313e-16))


@triton.jit
def gumbel_bound(high):
    """Return an upper bound of the noise of uniforms whose upper 32 bits are `high`: -ln(1 - u) at the end of their
    interval, at most 37, which no noise reaches. Rounding may lower it slightly; weight_bound() has room for that."""
    return tl.minimum(-tl.log((0xFFFFFFFF - high).to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10), 37.0)


@triton.jit
def log_weight(side, b, row, stats, id, z, mask):
    """Return the log-weights of ids in float64. z: their entries, read only if rows have no ids of their own."""
    if side.ids.numbers is not None:
        return add_up(side, stats, places_of(side, b, row, id, mask), LOG_PROB)
    elif side.PROBS:
        return tl.log(clean_prob(z).to(tl.float64))
    else:
        return log_prob(z, stats)


@triton.jit
def race_chunk(side, b, p, noise, c, alive, key, id, taken, num_taken, S):
    """Return the better of the racer (key, id) and the winner of chunks c; of equal keys, the lower id.

    The first num_taken tokens of `taken` do not race. If rows have ids of their own, chunks are of the places sorted by
    id, and the weights of one id add up."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    stats = RowStats(p.stats.scale, p.stats.cutoff, tl.zeros_like(p.stats.log_norm), p.stats.max)
    if side.ids.numbers is None:
        ids = (c * CHUNK)[:, None] + lane
        z = load_chunk(side, b, p.row, c, alive, -float("inf"), S)
        block = (c * (CHUNK // 2))[:, None].to(tl.int64) + tl.arange(0, S.WIDTH // 2)[None, :]
        even, _, odd, _ = philox(noise.seed[:, None], noise.position[:, None], DOMAIN_NOISE, block)
        bound = weight_bound(side, stats, z) + tl.interleave(gumbel_bound(even), gumbel_bound(odd))
    else:
        ids, z = merged_chunk(side, b, p.row, stats, c, alive, BOUND, S)
        even, _, odd, _ = philox(noise.seed[:, None], noise.position[:, None], DOMAIN_NOISE, ids.to(tl.int64) >> 1)
        bound = z + gumbel_bound(tl.where((ids & 1) == 1, odd, even))
    if taken is not None:
        for j in range(0, num_taken):
            gone = tl.load(taken + j, mask=alive, other=-1)
            bound = tl.where(ids == gone[:, None], -float("inf"), bound)
    most = tl.max(bound, 1)
    racing = alive & (most > -float("inf")) & (most >= key)
    while some(racing):
        mine = lane == tl.min(tl.where(bound == most[:, None], lane, S.WIDTH), 1)[:, None]
        own_id = tl.sum(tl.where(mine, ids, 0), 1).to(tl.int32)
        own = tl.sum(tl.where(mine, z, 0.0), 1)
        own_key = log_weight(side, b, p.row, stats, own_id, own, racing) + gumbel(noise, own_id.to(tl.int64))
        wins = racing & ((own_key > key) | ((own_key == key) & (own_id < id)) | (own_key != own_key))
        key = tl.where(wins, own_key, key)
        id = tl.where(wins, own_id, id)
        bound = tl.where(mine, -float("inf"), bound)
        most = tl.max(bound, 1)
        racing &= (most > -float("inf")) & (most >= key)
    return key, id


@triton.jit
def largest_finite(side, b, row, alive, S):
    """Return the id of the first of the largest finite entries of rows; 0 if there is none."""
    most = start(-float("inf"), tl.float32, S)
    entry = start(0, tl.int64, S)
    for c in range(0, chunks_of(side)):
        each_c = tl.zeros([S.ROWS], tl.int32) + c
        z = load_chunk(side, b, row, each_c, alive, -float("inf"), S)
        here = finite_max(z)
        entry = tl.where(here > most, c * CHUNK + first_lane_with(z, here, S), entry)
        most = tl.maximum(most, here)
    return token_at(side, b, row, entry, alive & (most > -float("inf")))


@triton.jit
def finished(side, b, p, id, on, S):
    """Return the tokens of races, and which rows are invalid. `id` is the winner; -1 if there is none. The token of an
    invalid row is the id of its largest finite entry."""
    token = tl.where(p.hot >= 0, p.hot, id)
    lost = on & (token < 0)
    token = tl.where(lost, 0, token)
    there = lost & (p.row >= 0)
    if some(there):
        token = tl.where(there, largest_finite(side, b, p.row, there, S), token)
    return token, lost


@triton.jit
def log_prob_of(side, b, p, token, lost, on):
    _, log_p = prob(side, b, p, token, on & ~lost)
    return tl.where(lost, float("nan"), log_p)


@triton.jit
def races(side, p, on):
    return on & (p.row >= 0) & (p.hot < 0) & is_valid(side, p)


@triton.jit
def winner(side, b, p, noise, on, S):
    """Run a race on the distributions p of the requests b. Return the tokens, their ln p, and which rows are
    invalid."""
    chunks = chunks_of(side)
    running = each(races(side, p, on), S)
    each_b = each_request(S)
    each_p = each_dist(p, S)
    each_noise = Noise(each(noise.seed, S), each(noise.position, S))
    key = tl.where(running, -float("inf"), -float("inf")).to(tl.float64)
    id = running.to(tl.int32) * 0 - 1
    for begin in range(0, chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        key, id = race_chunk(side, each_b, each_p, each_noise, c, running & (c < chunks), key, id, None, 0, S)
    keys = by_row(key, S)
    bad = tl.max((keys != keys).to(tl.int32), 1) > 0
    most = tl.max(tl.where(keys == keys, keys, -float("inf")), 1)
    last: tl.constexpr = 2147483647
    first = tl.min(tl.where((keys == most[:, None]) & (by_row(id, S) >= 0), by_row(id, S), last), 1)
    token, lost = finished(side, b, p, tl.where(bad | (first == last), -1, first).to(tl.int64), on, S)
    return token, log_prob_of(side, b, p, token, lost, on), lost


@triton.jit
def best_racer(racers, at, chunks, alive, S):
    """Return the id of the best racer of each row (-1 if there is none or the row is invalid), and its chunk."""
    most = start(-float("inf"), tl.float64, S)
    bad = start(0, tl.int32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        m = tl.load(racers.keys + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=-float("inf"))
        bad = tl.maximum(bad, tl.max((m != m).to(tl.int32), 1))
        most = tl.maximum(most, tl.max(tl.where(m == m, m, -float("inf")), 1))
    found = alive & (bad == 0) & (most > -float("inf"))
    c = first_chunk_with(racers.keys, at, chunks, most, found, S)
    return get_value(racers.ids + at + c, found, -1).to(tl.int64), c


@triton.jit
def dist_in(rows, slot, B, G, bonus, D, cu_draft, count):
    """Return, for slots of the grid, the request, the distribution, whether there is a row, and the index of its noise
    key. Rows have stats or are probabilities."""
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    key = index + b - b * rows.extra  # keys [B, G+1] have one for the bonus position even where the rows do not
    if rows.store.row is not None:
        if not rows.store.OF_POSITIONS:
            index = tl.maximum(row, 0) & 0xFFFFFFFF  # the upper half is a position
    return b, given_dist(rows, row, index, exists), exists, key


@launch.kernel
def race_kernel(rows, B, G, bonus, D, cu_draft, count, random, racers, per_program, S: tl.constexpr):
    """Find the winner of every chunk."""
    slot = (tl.program_id(0) * S.ROWS + tl.arange(0, S.ROWS)).to(tl.int64)
    b, p, exists, key_at = dist_in(rows, slot, B, G, bonus, D, cu_draft, count)
    noise = noise_at(random, b, slot - b * (G + bonus), key_at, exists)
    running = races(rows, p, exists)
    chunks = chunks_of(rows)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        key, id = start(-float("inf"), tl.float64, S), start(-1, tl.int32, S)
        each_c = tl.zeros([S.ROWS], tl.int32) + c
        key, id = race_chunk(rows, b, p, noise, each_c, running, key, id, None, 0, S)
        put_value(racers.keys + slot * chunks + c, key, exists)
        put_value(racers.ids + slot * chunks + c, id, exists)


@launch.kernel
def rank_kernel(
    rows, B, G, bonus, D, cu_draft, count, random, racers, tokens, logprobs, lost_out, k, S: tl.constexpr
):  # fmt: skip
    """Write the first k ids of each row's race to tokens [B, G + 1, k], -1 once no id is left, and their ln p. For an
    invalid row, write the id of its largest finite entry, k times. If lost_out [B, G + 1] is given, k is 1, and it gets
    1 for invalid rows, 0 for others."""
    slot = (tl.program_id(0) * S.ROWS + tl.arange(0, S.ROWS)).to(tl.int64)
    b, p, exists, key_at = dist_in(rows, slot, B, G, bonus, D, cu_draft, count)
    i = slot - b * (G + bonus)
    inside = slot < B * (G + bonus)
    running = races(rows, p, exists)
    at = slot * chunks_of(rows)
    id, c = best_racer(racers, at, chunks_of(rows), running, S)
    token, lost = finished(rows, b, p, id, inside, S)
    to = b * (G + 1) + i
    if lost_out is not None:
        put_value(tokens + to, token, inside)
        put_value(logprobs + to, log_prob_of(rows, b, p, token, lost, exists).to(tl.float32), inside)
        put_value(lost_out + to, lost.to(tl.int32), inside)
    else:
        noise = noise_at(random, b, i, key_at, exists)
        for j in range(0, k):
            put_value(tokens + to * k + j, token, inside)
            put_value(logprobs + to * k + j, log_prob_of(rows, b, p, token, lost, exists).to(tl.float32), inside)
            tl.debug_barrier()
            running &= ~lost & (token >= 0)
            if some(running) & (j + 1 < k):
                key, who = start(-float("inf"), tl.float64, S), start(-1, tl.int32, S)
                key, who = race_chunk(rows, b, p, noise, c, running, key, who, tokens + to * k, j + 1, S)
                put_value(racers.keys + at + c, key, running)
                put_value(racers.ids + at + c, who, running)
                tl.debug_barrier()
            id, c = best_racer(racers, at, chunks_of(rows), running, S)
            token = tl.where(lost, token, id)


def run_race(side: Rows, layout: launch.Layout, random: Random, tokens, logprobs, k: int = 1, lost=None) -> None:
    """Run a race on every row of a side, which has stats or probabilities (race_kernel, rank_kernel)."""
    table, slots = launch.table(side.V), layout.slots
    if not slots or not k:
        return
    size = slots, table.chunk_count
    racers = Racers(launch.empty(side, size, torch.float64), launch.empty(side, size, torch.int32))
    args = (side, *layout.arguments(), random, racers)
    threads = table.row_threads if side.ids is launch.NO_IDS else 256  # the search for an id takes registers
    launch.run_chunks(race_kernel, table, slots, *args, threads=threads)
    launch.run_rows(rank_kernel, table, slots, *args, tokens, logprobs, lost, k, threads=threads)

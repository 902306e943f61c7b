# SPDX-License-Identifier: Apache-2.0
"""The draw that ends every verification step (csrc/core/final_token.h): the inverse CDF in two levels over the same
chunks. `aim` picks the chunk by its sum, and the lane is found when that chunk is read again; where nothing has mass,
both are those of the largest finite entry."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .row import CHUNK, some

# What a status is made of.
INVALID_ROW = tl.constexpr(1)
EMPTY_RESIDUAL = tl.constexpr(2)
INVALID_DRAFT = tl.constexpr(4)
INVALID_BONUS = tl.constexpr(8)


@triton.jit
def has_mass(total):
    return (total > 0) & (total < float("inf"))


@triton.jit
def total_mass(masses, at, chunks, alive, S):
    """The chunk sums of each row, in float64."""
    total = tl.zeros([S.ROWS], tl.float64)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        m = tl.load(masses + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=0.0)
        total += tl.sum(m.to(tl.float64), 1)
    return total


@triton.jit
def largest_of(maxes, at, chunks, alive, S):
    most = tl.full([S.ROWS], -float("inf"), tl.float32)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        m = tl.load(maxes + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=-float("inf"))
        most = tl.maximum(most, tl.max(m, 1))
    return most


@triton.jit
def first_chunk_with(maxes, at, chunks, most, alive, S):
    """The first chunk whose maximum is `most` [ROWS]; 0 where nothing is finite."""
    first = tl.full([S.ROWS], 2147483647, tl.int32)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)
        inside = (c < chunks)[None, :] & alive[:, None]
        m = tl.load(maxes + at[:, None] + c[None, :], mask=inside, other=float("nan"))
        first = tl.minimum(first, tl.min(tl.where(m == most[:, None], c[None, :], 2147483647), 1))
    return tl.where((first < chunks) & (most > -float("inf")), first, 0)


@triton.jit
def first_lane_with(z, most, S):
    """The first lane of a chunk that holds `most` [ROWS]; 0 where nothing is finite."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    first = tl.min(tl.where(z == most[:, None], lane, S.WIDTH), 1)
    return tl.where((first < S.WIDTH) & (most > -float("inf")), first, 0)


@triton.jit
def pick_chunk(masses, at, chunks, target, alive, S):
    """The first chunk with mass where the running sum exceeds `target`, else the last with mass: the chunk, how far
    into it the target lies, and its mass."""
    running = tl.zeros([S.ROWS], tl.float64)
    chosen = tl.full([S.ROWS], -1, tl.int32)
    found = tl.zeros([S.ROWS], tl.int32)
    into = tl.zeros([S.ROWS], tl.float64)
    mass = tl.zeros([S.ROWS], tl.float64)
    for begin in range(0, chunks, S.CHUNKS):
        lane = tl.arange(0, S.CHUNKS)[None, :]
        inside = (begin + lane < chunks) & alive[:, None]
        m = tl.load(masses + at[:, None] + begin + lane, mask=inside, other=0.0).to(tl.float64)
        sums = running[:, None] + tl.cumsum(m, 1)
        hit = tl.min(tl.where((m > 0) & (sums > target[:, None]), lane, S.CHUNKS), 1)
        last = tl.max(tl.where(m > 0, lane, -1), 1)
        here = tl.where(hit < S.CHUNKS, hit, last)
        better = (found == 0) & (here >= 0)
        mine = lane == here[:, None]
        of_mine = tl.sum(tl.where(mine, m, 0.0), 1)
        before = tl.sum(tl.where(mine, sums, 0.0), 1) - of_mine
        into = tl.where(better, target - before, into)
        mass = tl.where(better, of_mine, mass)
        chosen = tl.where(better, begin + here, chosen)
        found = tl.where(hit < S.CHUNKS, 1, found)
        running += tl.sum(m, 1)
    return tl.maximum(chosen, 0), into, mass


@triton.jit
def pick_lane(w, into, mass, S):
    """The first lane with weight where the running sum exceeds into / mass of the chunk's total (the rescan's own),
    else the last."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    w = w.to(tl.float64)
    beyond = tl.cumsum(w, 1) * mass[:, None] > (into * tl.sum(w, 1))[:, None]
    hit = tl.min(tl.where((w > 0) & beyond, lane, S.WIDTH), 1)
    last = tl.max(tl.where(w > 0, lane, 0), 1)
    return tl.where(hit < S.WIDTH, hit, last)


class Aim(NamedTuple):
    chunk: Any
    into: Any
    mass: Any
    largest: Any  # finite entry of the row, where it is lost


@triton.jit
def aim(masses, at, maxes, maxes_at, chunks, target, found, lost, S):
    """The chunk of the token that is drawn where `found`, the running sum to exceed being `target`; where `lost`, that
    of the first largest finite entry."""
    c, into, mass = pick_chunk(masses, at, chunks, target, found, S)
    largest = tl.zeros([S.ROWS], tl.float32)
    if some(lost):
        largest = largest_of(maxes, maxes_at, chunks, lost, S)
        c = tl.where(lost, first_chunk_with(maxes, maxes_at, chunks, largest, lost, S), c)
    return Aim(c, into, mass, largest)


@triton.jit
def hit(aimed, z, w, found, lost, S):
    """The token: of the chunk that was aimed at, whose entries are z and weights w."""
    first = tl.where(lost, first_lane_with(z, aimed.largest, S), 0)
    lane = tl.where(found, pick_lane(w, aimed.into, aimed.mass, S), first)
    return aimed.chunk.to(tl.int64) * CHUNK + lane

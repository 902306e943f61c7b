# SPDX-License-Identifier: Apache-2.0
"""Inverse CDF in two levels over the same chunks: pick the chunk by its sum, then rescan that chunk."""

import triton
import triton.language as tl


@triton.jit
def has_mass(total):
    return (total > 0) & (total < float("inf"))


@triton.jit
def total_mass(masses, at, chunks, alive, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The chunk sums of each row, in float64."""
    total = tl.zeros([ROWS], tl.float64)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        m = tl.load(masses + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=0.0)
        total += tl.sum(m.to(tl.float64), 1)
    return total


@triton.jit
def pick_chunk(masses, at, chunks, target, alive, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The first chunk with mass where the running sum exceeds `target`, else the last with mass: the chunk, how far into it the
    target lies, and its mass."""
    running = tl.zeros([ROWS], tl.float64)
    chosen = tl.full([ROWS], -1, tl.int32)
    found = tl.zeros([ROWS], tl.int32)
    into = tl.zeros([ROWS], tl.float64)
    mass = tl.zeros([ROWS], tl.float64)
    for begin in range(0, chunks, CHUNKS):
        lane = tl.arange(0, CHUNKS)[None, :]
        m = tl.load(masses + at[:, None] + begin + lane, mask=(begin + lane < chunks) & alive[:, None], other=0.0).to(tl.float64)
        sums = running[:, None] + tl.cumsum(m, 1)
        hit = tl.min(tl.where((m > 0) & (sums > target[:, None]), lane, CHUNKS), 1)
        last = tl.max(tl.where(m > 0, lane, -1), 1)
        here = tl.where(hit < CHUNKS, hit, last)
        better = (found == 0) & (here >= 0)
        mine = lane == here[:, None]
        inside = tl.sum(tl.where(mine, m, 0.0), 1)
        before = tl.sum(tl.where(mine, sums, 0.0), 1) - inside
        into = tl.where(better, target - before, into)
        mass = tl.where(better, inside, mass)
        chosen = tl.where(better, begin + here, chosen)
        found = tl.where(hit < CHUNKS, 1, found)
        running += tl.sum(m, 1)
    return tl.maximum(chosen, 0), into, mass


@triton.jit
def pick_lane(w, into, mass, WIDTH: tl.constexpr):
    """The first lane with weight where the running sum exceeds into / mass of the chunk's total (the rescan's own), else the last."""
    lane = tl.arange(0, WIDTH)[None, :]
    w = w.to(tl.float64)
    beyond = tl.cumsum(w, 1) * mass[:, None] > (into * tl.sum(w, 1))[:, None]
    hit = tl.min(tl.where((w > 0) & beyond, lane, WIDTH), 1)
    last = tl.max(tl.where(w > 0, lane, 0), 1)
    return tl.where(hit < WIDTH, hit, last)

# SPDX-License-Identifier: Apache-2.0
"""Random numbers, and the choice of a token by one of them (csrc/core/{philox,final_token}.h).

The generator is Philox4x32-10 (Salmon et al., SC'11), which needs no state.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, load_value, some, start
from .row import CHUNK

DOMAIN_ACCEPT = tl.constexpr(0)
DOMAIN_FINAL = tl.constexpr(1)
DOMAIN_DRAFT = tl.constexpr(2)
DOMAIN_NOISE = tl.constexpr(3)


@triton.jit
def philox(seed, offset, domain, block):
    """Return the four 32-bit words of a block, each in the low half of an int64. Only the low half of `block` is
    used."""
    low: tl.constexpr = 0xFFFFFFFF
    w0 = block & low
    w1 = offset & low
    w2 = (offset >> 32) & low
    w3 = tl.zeros_like(w0) + domain
    key0 = seed & low
    key1 = (seed >> 32) & low
    for _ in tl.static_range(10):
        a = w0.to(tl.uint64) * 0xD2511F53
        b = w2.to(tl.uint64) * 0xCD9E8D57
        w0 = (b >> 32).to(tl.int64) ^ w1 ^ key0
        w1 = b.to(tl.int64) & low
        w2 = (a >> 32).to(tl.int64) ^ w3 ^ key1
        w3 = a.to(tl.int64) & low
        key0 = (key0 + 0x9E3779B9) & low
        key1 = (key1 + 0xBB67AE85) & low
    return w0, w1, w2, w3


@triton.jit
def uniform(seed, offset, domain, slot):
    """Return a 53-bit uniform in [0, 1). Slot i uses word pair (i & 1) of block i >> 1. Only the low 33 bits of i
    count."""
    w0, w1, w2, w3 = philox(seed, offset, domain, slot >> 1)
    odd = (slot & 1) == 1
    high = tl.where(odd, w2, w0)
    bits = (high << 21) | (tl.where(odd, w3, w1) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def given_uniform(u):
    """Return a caller's uniform, clamped to [0, 1); NaN counts as 0."""
    return tl.where(u > 0, tl.where(u < 1, u, tl.full(u.shape, 1 - 2.0**-53, tl.float64)), 0.0)


class Random(NamedTuple):
    """The source of uniforms: seeds and offsets, or the uniforms themselves. With neither, every uniform is 0."""

    seed: Any  # Values
    offset: Any
    uniforms: Any  # [B, columns]


@triton.jit
def uniform_of(random, b, column, columns, domain, slot, mask):
    """Return a uniform for each request b: the given one in `column`, or that of `slot` in `domain`."""
    if random.uniforms is not None:
        return given_uniform(get_value(random.uniforms + b * columns + column, mask, 0.0))
    elif random.seed.data is not None:
        seed = load_value(random.seed, b, mask, 0).to(tl.int64)
        offset = load_value(random.offset, b, mask, 0).to(tl.int64)
        return uniform(seed + slot * 0, offset + slot * 0, domain, slot + b * 0)
    else:
        return tl.zeros_like(b * slot).to(tl.float64)


# Bits of a status.
INVALID_ROW = tl.constexpr(1)
EMPTY_RESIDUAL = tl.constexpr(2)
INVALID_DRAFT = tl.constexpr(4)
INVALID_BONUS = tl.constexpr(8)


@triton.jit
def has_mass(total):
    return (total > 0) & (total < float("inf"))


@triton.jit
def total_mass(masses, at, chunks, alive, S):
    """Return the sum of each row's chunk sums, in float64."""
    total = start(0.0, tl.float64, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        m = tl.load(masses + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=0.0)
        total += tl.sum(m.to(tl.float64), 1)
    return total


@triton.jit
def largest_of(maxes, at, chunks, alive, S):
    most = start(-float("inf"), tl.float32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)[None, :]
        m = tl.load(maxes + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=-float("inf"))
        most = tl.maximum(most, tl.max(m, 1))
    return most


@triton.jit
def first_chunk_with(maxes, at, chunks, most, alive, S):
    """Return the first chunk whose maximum is `most` [ROWS]; 0 if no entry is finite."""
    first = start(2147483647, tl.int32, S)
    for begin in range(0, chunks, S.CHUNKS):
        c = begin + tl.arange(0, S.CHUNKS)
        inside = (c < chunks)[None, :] & alive[:, None]
        m = tl.load(maxes + at[:, None] + c[None, :], mask=inside, other=float("nan"))
        first = tl.minimum(first, tl.min(tl.where(m == most[:, None], c[None, :], 2147483647), 1))
    return tl.where((first < chunks) & (most > -float("inf")), first, 0)


@triton.jit
def first_lane_with(z, most, S):
    """Return the first lane of a chunk that holds `most` [ROWS]; 0 if no entry is finite."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    first = tl.min(tl.where(z == most[:, None], lane, S.WIDTH), 1)
    return tl.where((first < S.WIDTH) & (most > -float("inf")), first, 0)


@triton.jit
def pick_chunk(masses, at, chunks, target, alive, S):
    """Return the first chunk with mass at which the running sum exceeds `target`, else the last chunk with mass.

    Two more results follow: how far into the chunk the target is, and the chunk's mass."""
    running = start(0.0, tl.float64, S)
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
    """Return the first lane with weight at which the running sum exceeds the share into / mass of w's total, else the
    last lane with weight.

    The total is summed from w: `mass` was summed earlier and may be rounded differently."""
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
    largest: Any  # the largest finite entry of a row that is lost


@triton.jit
def aim(masses, at, maxes, maxes_at, chunks, target, found, lost, S):
    """Choose the chunk of the token.

    For rows that are `found`, it is the chunk in which the running sum exceeds `target`. For rows that are `lost`,
    which have no mass, it is the first chunk that holds their largest finite entry."""
    c, into, mass = pick_chunk(masses, at, chunks, target, found, S)
    largest = tl.zeros([S.ROWS], tl.float32)
    if some(lost):
        largest = largest_of(maxes, maxes_at, chunks, lost, S)
        c = tl.where(lost, first_chunk_with(maxes, maxes_at, chunks, largest, lost, S), c)
    return Aim(c, into, mass, largest)


@triton.jit
def hit(aimed, z, w, found, lost, S):
    """Return the token in the chunk that aim() chose. z: the chunk's entries; w: its weights."""
    first = tl.where(lost, first_lane_with(z, aimed.largest, S), 0)
    lane = tl.where(found, pick_lane(w, aimed.into, aimed.mass, S), first)
    return aimed.chunk.to(tl.int64) * CHUNK + lane

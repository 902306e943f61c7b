# SPDX-License-Identifier: Apache-2.0
"""The residual of a distribution after several rejections, evaluated id by id (csrc/core/residual.h), for a block of
requests.

The subtractions are stored in memory; residuals are not.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .draw import total_mass
from .memory import get_value, put_value
from .row import FLT_MAX, Dist, RowStats, chunks_from, chunks_of, each, each_request, finite_max, is_bad, lane_of
from .rows import draft_prob, each_dist, entries, prob

INTS = tl.constexpr(3)  # stored per subtraction
REMOVED = tl.constexpr(2)  # the place of `removed` among these integers
FLOATS = tl.constexpr(7)


class Subtraction(NamedTuple):
    """One step: r(v) becomes (x - s * min(q(v), cap * x))+ with x = m * r(v).

    If q is one-hot, its token gets 0. If there is no q, r becomes m * r."""

    q: Any
    m: Any
    s: Any
    cap: Any
    removed: Any  # a token that is removed from the q of later subtractions; -1: none


class Residual(NamedTuple):
    """p of the requests b after n subtractions, the first stored at `at`; not normalised."""

    b: Any
    p: Any
    at: Any
    n: Any


class Room(NamedTuple):
    """Memory for subtractions, and for the chunk sums of a residual."""

    ints: Any  # [subtractions, INTS]
    floats: Any  # [subtractions, FLOATS]
    masses: Any  # [B, chunks of the target]


class Sides(NamedTuple):
    target: Any
    draft: Any
    room: Any


@triton.jit
def subtracting(q, m, s, removed):
    return Subtraction(q, m, s, tl.zeros_like(m) + FLT_MAX, removed)


@triton.jit
def put_subtraction(sides, at, subtraction, mask):
    """Store a subtraction, between two barriers, since any thread may read it next."""
    tl.debug_barrier()
    ints = sides.room.ints + at * INTS
    put_value(ints, subtraction.q.row, mask)
    put_value(ints + 1, subtraction.q.hot, mask)
    put_value(ints + REMOVED, subtraction.removed, mask)
    floats = sides.room.floats + at * FLOATS
    put_value(floats, subtraction.q.stats.scale, mask)
    put_value(floats + 1, subtraction.q.stats.cutoff, mask)
    put_value(floats + 2, subtraction.q.stats.log_norm, mask)
    put_value(floats + 3, subtraction.q.stats.max, mask)
    put_value(floats + 4, subtraction.m, mask)
    put_value(floats + 5, subtraction.s, mask)
    put_value(floats + 6, subtraction.cap, mask)
    tl.debug_barrier()


@triton.jit
def get_subtraction(sides, at, mask):
    ints = sides.room.ints + at * INTS
    floats = sides.room.floats + at * FLOATS
    stats = RowStats(
        get_value(floats, mask, 1.0),
        get_value(floats + 1, mask, 1.0),
        get_value(floats + 2, mask, 1.0),
        get_value(floats + 3, mask, 1.0),
    )
    q = Dist(get_value(ints, mask, -1), get_value(ints + 1, mask, -1), stats)
    m = get_value(floats + 4, mask, 1.0)
    s = get_value(floats + 5, mask, 1.0)
    cap = get_value(floats + 6, mask, 1.0)
    return Subtraction(q, m, s, cap, get_value(ints + REMOVED, mask, -1))


@triton.jit
def weight(sides, residual, v, mask):
    """Return the weight of ids v in float64 (NaN where prob() is), and whether a subtraction removed v."""
    r, _ = prob(sides.target, residual.b, residual.p, v, mask)
    removed = mask & False
    for j in range(0, tl.max(tl.where(mask, residual.n, 0), 0)):
        here = mask & (j < residual.n)
        x = get_subtraction(sides, residual.at + j, here)
        r *= x.m.to(tl.float64)
        r *= tl.where((x.q.hot >= 0) & (x.q.hot == v), 0.0, 1.0)
        if sides.draft.data is not None:
            has_row = (x.q.row >= 0) & (x.q.hot < 0)
            q, _ = prob(sides.draft, residual.b, x.q, v, has_row & ~removed)
            left = r - x.s.to(tl.float64) * tl.minimum(draft_prob(q), x.cap.to(tl.float64) * r)
            r = tl.where(has_row, tl.where(left < 0, 0.0, left), r)
        removed |= here & (x.removed == v)
    return r, removed


@triton.jit
def draft_chunk(draft, b, q, c, alive, S):
    """Return chunks c of q's row as a residual subtracts it; 0 if q is one-hot or has no row."""
    here = alive & (q.row >= 0) & (q.hot < 0)
    _, y = entries(draft, b, q, c, here, True, S)
    return tl.where(here[:, None], y, 0.0)


@triton.jit
def chunk(sides, b, p, at, n, c, alive, S):
    """Return chunks c of p's row, and the weights that its subtractions leave."""
    z, w = entries(sides.target, b, p, c, alive, False, S)
    lane = tl.arange(0, S.WIDTH)[None, :]
    drafted = (lane >= 0) & alive[:, None]
    for j in range(0, tl.max(tl.where(alive, n, 0), 0)):
        here = alive & (j < n)
        x = get_subtraction(sides, at + j, here)
        w *= x.m[:, None]
        w = tl.where(lane == lane_of(x.q.hot, c)[:, None], 0.0, w)
        if sides.draft.data is not None:
            q = tl.where(drafted, draft_chunk(sides.draft, b, x.q, c, here, S), 0.0)
            w = tl.maximum(w - x.s[:, None] * tl.minimum(q, x.cap[:, None] * w), 0.0)
            drafted &= lane != lane_of(x.removed, c)[:, None]
    return z, w


@triton.jit
def sum_chunks(sides, residual, on, S):
    """Return the sum of a residual in float64; NaN if p is a row of probabilities that holds NaN or +inf.

    The chunk sums stay in room.masses, and the largest finite entries of p's chunks in target.scratch.maxes."""
    chunks = chunks_of(sides.target)
    p = each_dist(residual.p, S)
    b = each_request(S)
    at = each(residual.at, S)
    n = each(residual.n, S)
    out = b * chunks
    alive = each(on, S)
    tl.debug_barrier()
    for begin in range(0, chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < chunks)
        z, w = chunk(sides, b, p, at, n, c, here, S)
        mass = tl.sum(w, 1)
        if sides.target.PROBS:
            mass = tl.where(is_bad(z), float("nan"), mass)
        tl.store(sides.room.masses + out + c, mass, mask=here)
        tl.store(sides.target.scratch.maxes + out + c, finite_max(z), mask=here)
    tl.debug_barrier()
    return total_mass(sides.room.masses, residual.b * chunks, chunks, on, S)

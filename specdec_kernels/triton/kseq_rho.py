# SPDX-License-Identifier: Apache-2.0
"""The best rho of K-SEQ, for ROWS pairs at once (csrc/ops/kseq_rho/kseq_rho.h has the derivation).

The search is over t = rho * sum p / sum q. `under` is the sum U(t) = sum (p - t q)+, and rejected() is the probability
r(t) that one draft is rejected. The search looks for the smallest t with f(t) = U(t) / sum p - r(t)^k <= 0, and
returns the upper end of a narrow bracket of that t. One program makes all passes of the search over a pair, so later
passes can read the pair from the cache."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .core import launch
from .core.arguments import row_pair, values
from .core.ids import chunks_of_both
from .core.memory import load_value
from .core.row import is_bad
from .core.rows import entries
from .row_stats import dist

GUARD = tl.constexpr(2.0**-22)  # bound of the relative error of U
TIGHT = tl.constexpr(2.0**-21)  # relative width of a bracket that is narrow enough
LOOSE = tl.constexpr(2.0**-16)  # wider, but narrow enough if |f| is small there
SMOOTH_PASSES = tl.constexpr(10)  # later passes divide the bracket evenly, so the search ends whatever the rounding
MOST_PASSES = tl.constexpr(24)


class Pairs(NamedTuple):
    """The rows p and q of the requests b."""

    target: Any
    draft: Any
    b: Any
    p: Any
    q: Any


@triton.jit
def pair_weights(side, b, d, c, alive, DRAFT: tl.constexpr, S):
    """Return the weights of chunk c as a residual uses them. They are NaN if the stats of logits are, or if a chunk of
    probabilities holds NaN or +inf."""
    z, w = entries(side, b, d, c, alive & (d.hot < 0), DRAFT, S)
    if side.PROBS:
        return tl.where(is_bad(z)[:, None], float("nan"), w)
    else:
        return tl.where((d.stats.log_norm == d.stats.log_norm)[:, None], w, float("nan"))


@triton.jit
def both_weights(pairs, c, alive, S):
    c = tl.zeros([S.ROWS], tl.int32) + c
    y = pair_weights(pairs.draft, pairs.b, pairs.q, c, alive, True, S)
    return pair_weights(pairs.target, pairs.b, pairs.p, c, alive, False, S), y


@triton.jit
def under_by_fours(x, y, t, S):
    """Return (x - t y)+ of a chunk as float64 [ROWS, WIDTH / 4], summed in float32 over groups of four. All further
    sums are in float64."""
    w = tl.maximum(tl.fma(tl.broadcast_to(-t[:, None], y.shape), y, x), 0.0)
    if S.WIDTH >= 4:
        w = tl.sum(tl.reshape(w, [S.ROWS, S.WIDTH // 4, 4]), 2)
    return w.to(tl.float64)


@triton.jit
def power(r, k):
    every = tl.full(r.shape, 1.0, tl.float64)
    left = tl.max(k)
    k = tl.broadcast_to(k, r.shape)
    while left > 0:
        every = tl.where((k & 1) == 1, every * r, every)
        r = r * r
        k = k >> 1
        left = left >> 1
    return every


@triton.jit
def rejected(t, under, p_mass, q_mass):
    return tl.minimum(
        tl.maximum((under + (t * q_mass - p_mass)) / (t * q_mass), 0.0), 1.0
    )  # only rounding takes it out of [0, 1]


@triton.jit
def excess(t, under, p_mass, q_mass, k, guard):
    """Return f [ROWS, points], with its term U(t) / sum p enlarged by the share `guard`. Masses and k are [ROWS, 1]."""
    return under / p_mass * (1 + guard) - power(rejected(t, under, p_mass, q_mass), k)


class Bracket(NamedTuple):
    """An interval in which f crosses 0: both ends, U there, and the slopes of U before lo and after hi. All are
    [ROWS, 1]."""

    lo: Any
    lo_under: Any
    hi: Any
    hi_under: Any
    before: Any
    after: Any


@triton.jit
def crossing(bracket, dip_lo, dip_hi, p_mass, q_mass, k):
    """Return the point where f crosses 0, as a share of the bracket, rounded up to a multiple of 2^-10.

    At share w, U is assumed to lie min(w dip_lo, (1 - w) dip_hi) below its chord. All are [ROWS, 1]."""
    begin = bracket.lo * 0
    i = tl.arange(0, 32)[None, :]
    for turn in tl.static_range(2):
        w = begin + (i + 1).to(tl.float64) * (2.0 ** (-5 * (turn + 1)))
        n = 1 - w
        dip = tl.maximum(tl.minimum(w * dip_lo, n * dip_hi), 0.0)
        under = tl.maximum(n * bracket.lo_under + w * bracket.hi_under - dip, 0.0)
        over = excess(n * bracket.lo + w * bracket.hi, under, p_mass, q_mass, k, 1.5 * GUARD) <= 0
        first = tl.min(tl.where(over, i, 31), 1)[:, None]
        begin += first.to(tl.float64) * (2.0 ** (-5 * (turn + 1)))
    return begin + 2.0**-10


@triton.jit
def column(x, m):
    """Return column m of x [ROWS, 4]."""
    return tl.sum(tl.where(tl.arange(0, 4)[None, :] == m, x, 0.0), 1)


@triton.jit
def at_point(t, under, x):
    """Return U at the candidate x [ROWS, 1]; `under` has U at the candidates t."""
    return tl.max(tl.where(t == x, under, -1.0), 1)[:, None]


@triton.jit
def masses_of(pairs, alive, S):
    p_sums = tl.zeros([S.ROWS, S.WIDTH], tl.float64)
    q_sums = tl.zeros([S.ROWS, S.WIDTH], tl.float64)
    for c in range(0, chunks_of_both(pairs.target, pairs.draft, pairs.b, pairs.q)):
        x, y = both_weights(pairs, c, alive, S)
        p_sums += x.to(tl.float64)
        q_sums += y.to(tl.float64)
    return tl.sum(p_sums, 1), tl.sum(q_sums, 1)


@triton.jit
def clipped_sums(pairs, t, alive, S):
    """Return U(t) = sum (p - t q)+ at the four candidates t [ROWS, 4], in one pass."""
    SUMS: tl.constexpr = S.WIDTH // 4 if S.WIDTH >= 4 else S.WIDTH
    s0 = tl.zeros([S.ROWS, SUMS], tl.float64)
    s1 = tl.zeros([S.ROWS, SUMS], tl.float64)
    s2 = tl.zeros([S.ROWS, SUMS], tl.float64)
    s3 = tl.zeros([S.ROWS, SUMS], tl.float64)
    t0 = column(t, 0).to(tl.float32)
    t1 = column(t, 1).to(tl.float32)
    t2 = column(t, 2).to(tl.float32)
    t3 = column(t, 3).to(tl.float32)
    for c in range(0, chunks_of_both(pairs.target, pairs.draft, pairs.b, pairs.q)):
        x, y = both_weights(pairs, c, alive, S)
        s0 += under_by_fours(x, y, t0, S)
        s1 += under_by_fours(x, y, t1, S)
        s2 += under_by_fours(x, y, t2, S)
        s3 += under_by_fours(x, y, t3, S)
    m = tl.arange(0, 4)[None, :]
    last = tl.where(m == 2, tl.sum(s2, 1)[:, None], tl.sum(s3, 1)[:, None])
    return tl.where(m == 0, tl.sum(s0, 1)[:, None], tl.where(m == 1, tl.sum(s1, 1)[:, None], last))


@triton.jit
def shrink(bracket, t, under, valid, going):
    """Move lo to the largest candidate with f > 0, and hi to the smallest one beyond it with f <= 0.

    The slopes become those of U from the point before lo to lo, and from hi to the point after it."""
    lo, lo_under = bracket.lo, bracket.lo_under
    inside = going & (t > lo) & (t < bracket.hi)
    new = tl.maximum(tl.max(tl.where(inside & ~valid, t, 0.0), 1)[:, None], lo)
    rises = new > lo
    new_under = at_point(t, under, new)
    back = tl.max(tl.where(inside & ~valid & (t < new), t, 0.0), 1)[:, None]
    back_under = tl.where(back > lo, at_point(t, under, back), lo_under)
    back = tl.maximum(back, lo)
    before = tl.where(rises, (new_under - back_under) / (new - back), bracket.before)
    lo_under = tl.where(rises, new_under, lo_under)
    lo = new
    hi, hi_under = bracket.hi, bracket.hi_under
    beyond = inside & valid & (t > lo)
    new = tl.minimum(tl.min(tl.where(beyond, t, float("inf")), 1)[:, None], hi)
    falls = new < hi
    new_under = at_point(t, under, new)
    fore = tl.min(tl.where(beyond & (t > new), t, float("inf")), 1)[:, None]
    fore_under = tl.where(fore < hi, at_point(t, under, fore), hi_under)
    fore = tl.minimum(fore, hi)
    after = tl.where(falls, (fore_under - new_under) / (fore - new), bracket.after)
    return Bracket(lo, lo_under, new, tl.where(falls, new_under, hi_under), before, after)


@triton.jit
def still_open(bracket, p_mass, q_mass, k):
    width = bracket.hi - bracket.lo
    off = excess(bracket.hi, bracket.hi_under, p_mass, q_mass, k, 0.0)
    loose = (width <= LOOSE * bracket.hi) & (off > -2 * GUARD)
    near = excess(bracket.hi, bracket.hi_under, p_mass, q_mass, k, 2 * GUARD) <= 0
    return ~((width <= TIGHT * bracket.hi) | loose) & near


@triton.jit
def candidates(bracket, smooth, p_mass, q_mass, k):
    """Return four evenly spaced candidates in the bracket.

    If `smooth`, f crosses 0 near the first if U follows its tangents, and near the last if U follows its chord.
    Otherwise the candidates divide the bracket into five equal parts."""
    width = bracket.hi - bracket.lo
    begin = bracket.lo * 0 + 0.2
    end = bracket.lo * 0 + 0.8
    if smooth:
        chord = tl.where(width > 0, (bracket.hi_under - bracket.lo_under) / width, 0.0)
        dip_lo, dip_hi = width * (chord - bracket.before), width * (bracket.after - chord)
        begin = crossing(bracket, dip_lo, dip_hi, p_mass, q_mass, k) - 2.0**-10
        end = crossing(bracket, bracket.lo * 0, bracket.lo * 0, p_mass, q_mass, k)
    step = tl.arange(0, 4)[None, :].to(tl.float64) / 3
    return (bracket.lo + width * (begin + (end - begin) * step)).to(tl.float32).to(tl.float64)


@triton.jit
def search(pairs, t, last, p_mass, q_mass, k, alive, going, S):
    """Return the last bracket of the search that begins with the candidates t."""
    zero = p_mass * 0
    bracket = Bracket(column(t, 0)[:, None], zero, last, zero, zero, zero)
    turn = 1
    while turn > 0:
        under = clipped_sums(pairs, t, alive & (tl.max(going.to(tl.int32), 1) > 0), S)
        valid = excess(t, under, p_mass, q_mass, k, GUARD) <= 0
        if turn == 1:
            lo, lo_under = bracket.lo, column(under, 0)[:, None]
            best = (k == 1) | (column(valid.to(tl.float64), 0)[:, None] > 0)
            hi = tl.where(best, lo, bracket.hi)
            hi_under = tl.where(best, lo_under, column(under, 3)[:, None])
            bracket = Bracket(lo, lo_under, hi, hi_under, (lo_under - p_mass) / lo, bracket.after)
        bracket = shrink(bracket, t, under, valid, going)
        going = going & still_open(bracket, p_mass, q_mass, k)
        turn = tl.where((tl.max(going.to(tl.int32)) > 0) & (turn < MOST_PASSES), turn + 1, 0)
        if turn > 0:
            t = candidates(bracket, turn <= SMOOTH_PASSES, p_mass, q_mass, k)
    return bracket


@triton.jit
def kseq_search(pairs, k, alive, S):
    """Return rho, beta and p_acc, [ROWS] float64. k: [ROWS] int64. S.WIDTH: the lanes of a chunk of the wider row."""
    p_mass, q_mass = masses_of(pairs, alive, S)
    law = (p_mass > 0) & (p_mass < float("inf")) & (q_mass > 0)
    most = tl.maximum(k, 1)[:, None]
    k = tl.where(law[:, None], most, 1)
    p_mass = tl.where(law, p_mass, 1.0)[:, None]
    q_mass = tl.where(law, q_mass, 1.0)[:, None]

    one = p_mass / q_mass
    last = (one * k.to(tl.float64)).to(tl.float32).to(tl.float64)
    step = tl.arange(0, 4)[None, :].to(tl.float64) / 3
    t = one * tl.exp2(step * tl.log2(k.to(tl.float64)))
    t = tl.where(step == 1, last, t).to(tl.float32).to(tl.float64)
    found = search(pairs, t, last, p_mass, q_mass, k, alive, (alive & law)[:, None], S)

    r = rejected(found.hi, found.hi_under, p_mass, q_mass)
    ceiling = most.to(tl.float64)
    rho = tl.where(found.hi == last, ceiling, tl.minimum(tl.maximum(found.hi / one, 1.0), ceiling))
    apart = (k > 1) & (found.hi_under >= p_mass * (1 - GUARD))  # p and q overlap by no more than rounding
    rho = tl.where(apart | ~law[:, None], ceiling, rho)
    beta = tl.where(law[:, None], tl.where(apart, 0.0, 1 - r), float("nan"))
    p_acc = tl.where(law[:, None], tl.where(apart, 0.0, 1 - power(r, k)), float("nan"))
    return tl.sum(rho, 1), tl.sum(beta, 1), tl.sum(p_acc, 1)


@launch.kernel
def kseq_rho_kernel(target, draft, k, rho, beta, p_acc, N, S: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = n < N
    drafts = load_value(k, n, exists, 1).to(tl.int64)
    p = dist(target, n, n * 0, n, exists, False, S)
    q = dist(draft, n, n * 0, n, exists, False, S)
    found = kseq_search(Pairs(target, draft, n, p, q), drafts, exists, S)
    tl.store(rho + n, found[0], mask=exists)
    tl.store(beta + n, found[1], mask=exists)
    tl.store(p_acc + n, found[2], mask=exists)


def kseq_rho(results, p, p_stats, q, q_stats, k, q_ids):
    if N := p.size(0):
        sides, table = row_pair(p, p_stats, q, q_stats, q_ids)
        together = min(table.rows, 128)  # a program is as slow as the slowest of its searches
        args = (*sides, values(k), *results, N)
        grid = (launch.blocks(N, together),)
        launch.run(kseq_rho_kernel, grid, table.row_threads, *args, S=table.sizes(ROWS=together, TOGETHER=1))

# SPDX-License-Identifier: Apache-2.0
"""The best rho of K-SEQ: csrc/ops/kseq_rho/kseq_rho.h for ROWS pairs at once, the whole search in one program."""

import triton
import triton.language as tl

from .mixture import first_chunk
from .row import CHUNK, clean_p, clean_q, is_bad, is_greedy, lane_of, load_chunk, load_law, probs
from .side import Dist

GUARD = tl.constexpr(2.0**-22)
TIGHT = tl.constexpr(2.0**-21)
LOOSE = tl.constexpr(2.0**-16)
SMOOTH_PASSES = tl.constexpr(10)
MOST_PASSES = tl.constexpr(24)


@triton.jit
def pair_law(stats, index, V, alive):
    """The law of rows under their stats; without stats they hold probabilities."""
    none = index * 0 - 1
    if stats is None:
        one = tl.full(alive.shape, 1.0, tl.float32)
        return Dist(index, none, one, one, one, one)
    else:
        scale, cutoff, log_norm, most = load_law(stats, index, alive)
        greedy = is_greedy(scale, log_norm, V)
        return Dist(index, tl.where(greedy, tl.where(greedy, log_norm, -1.0).to(tl.int64), none), scale, cutoff, log_norm, most)


@triton.jit
def pair_weights(rows, offset, V, law, c, alive, DRAFT: tl.constexpr, PROBS: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk c of rows as a residual sees it, NaN where it is no law."""
    at = tl.zeros(alive.shape, tl.int32) + c
    alive = alive & (law.hot < 0)
    if PROBS:
        z = load_chunk(rows, offset, V, at, alive, 0.0, WIDTH)
        w = clean_q(z) if DRAFT else clean_p(z)
        w = tl.where(is_bad(z)[:, None], float("nan"), w)
    else:
        w = probs(load_chunk(rows, offset, V, at, alive, -float("inf"), WIDTH), law.scale, law.cutoff, law.log_norm, law.most)
        w = tl.where((law.log_norm == law.log_norm)[:, None], w, float("nan"))
    hot = (tl.arange(0, WIDTH)[None, :] == lane_of(law.hot, at)[:, None]).to(tl.float32)
    return tl.where((law.hot >= 0)[:, None], hot, w)


@triton.jit
def target_weights(rows, chain, p, offset, V, law, c, alive, PROBS: tl.constexpr, WIDTH: tl.constexpr):
    if chain is None:
        return pair_weights(p, offset, V, law, c, alive, False, PROBS, WIDTH)
    else:
        _, w = first_chunk(rows, chain.b, chain.p, chain.at, tl.zeros(alive.shape, tl.int32) + c, alive, WIDTH)
        return w


@triton.jit
def under_by_fours(x, y, t, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(x - t y)+ of a chunk: four neighbours are added up in float32, the rest will be in float64."""
    w = tl.maximum(tl.fma(tl.broadcast_to(-t[:, None], y.shape), y, x), 0.0)
    if WIDTH >= 4:
        w = tl.sum(tl.reshape(w, [ROWS, WIDTH // 4, 4]), 2)
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
    return tl.minimum(tl.maximum((under + (t * q_mass - p_mass)) / (t * q_mass), 0.0), 1.0)  # but for rounding it lies there


@triton.jit
def excess(t, under, p_mass, q_mass, k, guard):
    """f [ROWS, points], above what it may be if the sum is off by `guard` of itself. Masses and k are [ROWS, 1]."""
    return under / p_mass * (1 + guard) - power(rejected(t, under, p_mass, q_mass), k)


@triton.jit
def crossing(lo, lo_under, hi, hi_under, dip_lo, dip_hi, p_mass, q_mass, k):
    """Where f crosses 0 in the bracket if the sum dips below its chord by min(w dip_lo, (1 - w) dip_hi), in 32nds of 32nds, rounded up.
    All are [ROWS, 1]."""
    begin = lo * 0
    i = tl.arange(0, 32)[None, :]
    for turn in tl.static_range(2):
        w = begin + (i + 1).to(tl.float64) * (2.0 ** (-5 * (turn + 1)))
        n = 1 - w
        dip = tl.maximum(tl.minimum(w * dip_lo, n * dip_hi), 0.0)
        under = tl.maximum(n * lo_under + w * hi_under - dip, 0.0)
        over = excess(n * lo + w * hi, under, p_mass, q_mass, k, 1.5 * GUARD) <= 0
        first = tl.min(tl.where(over, i, 31), 1)[:, None]
        begin += first.to(tl.float64) * (2.0 ** (-5 * (turn + 1)))
    return begin + 2.0**-10


@triton.jit
def column(x, m):
    """Column m of [ROWS, 4]."""
    return tl.sum(tl.where(tl.arange(0, 4)[None, :] == m, x, 0.0), 1)


@triton.jit
def at_point(t, under, x):
    """What was summed at the candidate x [ROWS, 1]."""
    return tl.max(tl.where(t == x, under, -1.0), 1)[:, None]


@triton.jit
def kseq_search(
    p, p_offset, V, p_stats, p_index, q, q_offset, Vq, q_stats, q_index, k, alive, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """rho, beta, p_acc [ROWS] float64 of the pairs of rows at p_offset and q_offset: logits under stats [., 4] at p_index and q_index,
    or probabilities where the stats are None. k [ROWS] int64; WIDTH covers a chunk of the wider row."""
    p_law = pair_law(p_stats, p_index, V, alive)
    q_law = pair_law(q_stats, q_index, Vq, alive)
    return search_laws(p, p_offset, V, p_law, q, q_offset, Vq, q_law, k, alive, p_stats is None, q_stats is None, ROWS, WIDTH)


@triton.jit
def search_laws(
    p, p_offset, V, p_law, q, q_offset, Vq, q_law, k, alive,
    P_PROBS: tl.constexpr, Q_PROBS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, rows=None, chain=None,
):  # fmt: skip
    """kseq_search under laws that are at hand; with a chain, of what it begins with in place of p."""
    chunks = tl.cdiv(tl.maximum(V, Vq), CHUNK)
    SUMS: tl.constexpr = WIDTH // 4 if WIDTH >= 4 else WIDTH
    p_sums = tl.zeros([ROWS, WIDTH], tl.float64)
    q_sums = tl.zeros([ROWS, WIDTH], tl.float64)
    for c in range(0, chunks):
        p_sums += target_weights(rows, chain, p, p_offset, V, p_law, c, alive, P_PROBS, WIDTH).to(tl.float64)
        q_sums += pair_weights(q, q_offset, Vq, q_law, c, alive, True, Q_PROBS, WIDTH).to(tl.float64)
    p_mass = tl.sum(p_sums, 1)
    q_mass = tl.sum(q_sums, 1)
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
    lo = column(t, 0)[:, None]
    hi = last
    lo_under = p_mass * 0
    hi_under = lo_under
    before = lo_under
    after = lo_under
    going = (alive & law)[:, None]
    turn = 1
    while turn > 0:
        reads = alive & (tl.max(going.to(tl.int32), 1) > 0)
        s0 = tl.zeros([ROWS, SUMS], tl.float64)
        s1 = tl.zeros([ROWS, SUMS], tl.float64)
        s2 = tl.zeros([ROWS, SUMS], tl.float64)
        s3 = tl.zeros([ROWS, SUMS], tl.float64)
        t0 = column(t, 0).to(tl.float32)
        t1 = column(t, 1).to(tl.float32)
        t2 = column(t, 2).to(tl.float32)
        t3 = column(t, 3).to(tl.float32)
        for c in range(0, chunks):
            x = target_weights(rows, chain, p, p_offset, V, p_law, c, reads, P_PROBS, WIDTH)
            y = pair_weights(q, q_offset, Vq, q_law, c, reads, True, Q_PROBS, WIDTH)
            s0 += under_by_fours(x, y, t0, ROWS, WIDTH)
            s1 += under_by_fours(x, y, t1, ROWS, WIDTH)
            s2 += under_by_fours(x, y, t2, ROWS, WIDTH)
            s3 += under_by_fours(x, y, t3, ROWS, WIDTH)
        u0 = tl.sum(s0, 1)[:, None]
        u3 = tl.sum(s3, 1)[:, None]
        m = tl.arange(0, 4)[None, :]
        under = tl.where(m == 0, u0, tl.where(m == 1, tl.sum(s1, 1)[:, None], tl.where(m == 2, tl.sum(s2, 1)[:, None], u3)))
        valid = excess(t, under, p_mass, q_mass, k, GUARD) <= 0
        if turn == 1:
            lo_under = u0
            hi_under = u3
            before = (lo_under - p_mass) / lo
            best = (k == 1) | (column(valid.to(tl.float64), 0)[:, None] > 0)
            hi = tl.where(best, lo, hi)
            hi_under = tl.where(best, lo_under, hi_under)

        # The largest candidate where f > 0, and the point before it; then the smallest one beyond where f <= 0, and the point after it.
        inside = going & (t > lo) & (t < hi)
        new = tl.maximum(tl.max(tl.where(inside & ~valid, t, 0.0), 1)[:, None], lo)
        rises = new > lo
        new_under = at_point(t, under, new)
        back = tl.max(tl.where(inside & ~valid & (t < new), t, 0.0), 1)[:, None]
        back_under = tl.where(back > lo, at_point(t, under, back), lo_under)
        back = tl.maximum(back, lo)
        before = tl.where(rises, (new_under - back_under) / (new - back), before)
        lo_under = tl.where(rises, new_under, lo_under)
        lo = new
        beyond = inside & valid & (t > lo)
        new = tl.minimum(tl.min(tl.where(beyond, t, float("inf")), 1)[:, None], hi)
        falls = new < hi
        new_under = at_point(t, under, new)
        fore = tl.min(tl.where(beyond & (t > new), t, float("inf")), 1)[:, None]
        fore_under = tl.where(fore < hi, at_point(t, under, fore), hi_under)
        fore = tl.minimum(fore, hi)
        after = tl.where(falls, (fore_under - new_under) / (fore - new), after)
        hi_under = tl.where(falls, new_under, hi_under)
        hi = new

        width = hi - lo
        off = excess(hi, hi_under, p_mass, q_mass, k, 0.0)
        loose = (width <= LOOSE * hi) & (off > -2 * GUARD)
        near = excess(hi, hi_under, p_mass, q_mass, k, 2 * GUARD) <= 0
        going = going & ~((width <= TIGHT * hi) | loose) & near
        turn = tl.where((tl.max(going.to(tl.int32)) > 0) & (turn < MOST_PASSES), turn + 1, 0)
        if turn > 0:
            begin = lo * 0 + 0.2
            end = lo * 0 + 0.8
            if turn <= SMOOTH_PASSES:
                chord = tl.where(width > 0, (hi_under - lo_under) / width, 0.0)
                begin = crossing(lo, lo_under, hi, hi_under, width * (chord - before), width * (after - chord), p_mass, q_mass, k) - 2.0**-10
                end = crossing(lo, lo_under, hi, hi_under, lo * 0, lo * 0, p_mass, q_mass, k)
            t = (lo + width * (begin + (end - begin) * step)).to(tl.float32).to(tl.float64)

    r = rejected(hi, hi_under, p_mass, q_mass)
    ceiling = most.to(tl.float64)
    rho = tl.where(hi == last, ceiling, tl.minimum(tl.maximum(hi / one, 1.0), ceiling))
    apart = (k > 1) & (hi_under >= p_mass * (1 - GUARD))  # nothing in common that could be told from rounding
    rho = tl.where(apart | ~law[:, None], ceiling, rho)
    beta = tl.where(law[:, None], tl.where(apart, 0.0, 1 - r), float("nan"))
    p_acc = tl.where(law[:, None], tl.where(apart, 0.0, 1 - power(r, k)), float("nan"))
    return tl.sum(rho, 1), tl.sum(beta, 1), tl.sum(p_acc, 1)

# SPDX-License-Identifier: Apache-2.0
"""The end of a walk by a rule: on the way back to the last position that stays, and the final token there
(csrc/ops/verify_chain/{block_verification,position}.h)."""

import triton
import triton.language as tl

from ..core.final_token import has_mass, pick_chunk, pick_lane
from .draft_test import EMPTY_RESIDUAL, INVALID_ROW
from ..core.row import CHUNK, FLT_MAX
from ..core.pair import chunks_of, draft_prob, entry, defines_distribution, load, log_prob_at, prob_at
from ..core.philox import DOMAIN_ACCEPT, DOMAIN_FINAL
from ..rules.rule_dist import MIXED, NOBODY, Pi, complete, is_p, is_q, rest_chunk
from .position import coin, get_place

# Where the way back stands: looking for the last position that stays, or drawing at it from what is left of pi, from pi, or from p.
TESTING = tl.constexpr(0)
REST = tl.constexpr(1)
WHOLE = tl.constexpr(2)
PLAIN = tl.constexpr(3)
LOST = tl.constexpr(4)
DONE = tl.constexpr(5)


@triton.jit
def rest_mass(target, draft, place, pi, m, minus, masses, at, sums, S):
    """The total of (m pi - minus q)+ in float64, NaN where p is no law; its chunks stay in masses."""
    total = tl.full([], 0.0, tl.float64)
    chunks = chunks_of(target.V)
    tl.debug_barrier()
    for begin in range(0, tl.where(sums, chunks, 0), S.TOGETHER):
        c = begin + tl.arange(0, S.TOGETHER)
        w, bad = rest_chunk(target, draft, place.p, place.q, pi, m, minus, c, S)
        mass = tl.where(bad, float("nan"), tl.sum(w, 1))
        tl.store(masses + at + c, mass, mask=c < chunks)
        total += tl.sum(tl.where(c < chunks, mass, 0.0).to(tl.float64), 0)
    tl.debug_barrier()
    return total


@triton.jit
def draw(target, draft, place, pi, m, minus, masses, at, total, v, S):
    """Inverse CDF over the chunk sums left behind."""
    one = tl.zeros([1], tl.float64)
    chunk, into, mass = pick_chunk(masses, one.to(tl.int64) + at, chunks_of(target.V), one + v * total, one == 0, 1, S.CHUNKS)
    w, _ = rest_chunk(target, draft, place.p, place.q, pi, m, minus, chunk, S)
    return tl.sum(chunk.to(tl.int64) * CHUNK + pick_lane(w, into, mass, S.WIDTH), 0)


@triton.jit
def argmax_finite(target, p, needed, S):
    """The first of the largest finite entries; 0 where there is none."""
    top = tl.full([], -float("inf"), tl.float32)
    id = tl.full([], 0, tl.int32)
    for begin in range(0, tl.where(needed, chunks_of(target.V), 0), S.TOGETHER):
        c = begin + tl.arange(0, S.TOGETHER)
        z = load(target, p, c, needed, -float("inf"), S)
        z = tl.where(z < float("inf"), z, -float("inf"))
        most = tl.max(tl.max(z, 1), 0)
        at = (c * CHUNK)[:, None] + tl.arange(0, S.WIDTH)[None, :]
        first = tl.min(tl.min(tl.where(z == most, at, 2147483647), 1), 0)
        id = tl.where(most > top, first, id)
        top = tl.maximum(top, most)
    return id.to(tl.int64)


@triton.jit
def settle(drafts, x, i, status, target, draft, places, masses, coins, alpha, block, S):
    """The position where the walk ends, the final token there, ln p of it, and the status.

    In a block: the last i with u < h_i, h_i = s_i / (s_i + 1 - r_i), s_i = sum (r_i pi_i - q_i)+; h = r at the last. After a tested
    draft the token is from (r pi - q)+; from pi where nothing is to be taken away or nothing is left; or else from p."""
    at = x.b * chunks_of(target.V)
    v = coin(coins, drafts, x, DOMAIN_FINAL, x.b * 0, drafts.G)
    state = tl.where(block & (i > 0), TESTING, REST)
    empty = tl.full([], 0, tl.int32)
    token = x.b * 0
    logprob = tl.full([], float("nan"), tl.float64)
    while state < LOST:
        place, draws = get_place(places, drafts, x, i, target, draft)
        r = place.r
        testing = state == TESTING
        u = coin(coins, drafts, x, DOMAIN_ACCEPT, tl.maximum(i - 1, 0), tl.maximum(i - 1, 0))
        fine = draws & defines_distribution(place.p)
        if target.PROBS:
            hopeless = testing & False
        else:
            hopeless = testing & (u > 1.01 * r)  # s <= r, up to rounding, so h <= r
        pi = complete(target, draft, place.p, place.q, place.pi, alpha.first, fine & ~hopeless, S)
        one = tl.full([], 1.0, tl.float32)
        plain = state == PLAIN
        pi = Pi(
            tl.where(plain, MIXED, pi.form), tl.where(plain, NOBODY, pi.ruler), tl.where(plain, one, pi.of_p), tl.where(plain, one * 0, pi.of_q),
            pi.cut, pi.lack, pi.open,
        )  # fmt: skip
        takes = place.tested & (place.q.row | (place.q.hot >= 0)) & (state <= REST)
        hot = tl.where(is_p(pi), place.p.hot, tl.where(is_q(pi), place.q.hot, -1))
        m = tl.where(takes, r, 1.0).to(tl.float32)
        # Of p itself a one-hot draft leaves nothing.
        minus = tl.where(takes, tl.where(is_p(pi) & (place.q.hot >= 0), FLT_MAX, one), 0.0)
        sums = fine & ~hopeless & (hot < 0)
        total = rest_mass(target, draft, place, pi, m, minus, masses, at, sums, S)
        q_hot = draft_prob(prob_at(draft, place.q, hot, entry(draft, place.q, hot)))
        s = tl.where(hot >= 0, tl.maximum(r - q_hot, 0.0), total)
        h = tl.where(place.tested & (r < 1) & (s == s), s / (s + 1 - r), r)
        stays = ~testing | (~hopeless & (u < h))
        found = stays & sums & has_mass(total)
        done = stays & (~draws | (fine & ((hot >= 0) | found)))
        token = tl.where(done & (hot >= 0), hot, token)
        if found:
            token = draw(target, draft, place, pi, m, minus, masses, at, total, v, S)
        x_p = log_prob_at(target, place.p, token, entry(target, place.p, token))
        logprob = tl.where(done & draws, x_p, logprob)
        empty = tl.where(stays & sums & ~found, EMPTY_RESIDUAL, empty)
        status |= tl.where(done, empty, 0)
        further = tl.where(state <= REST, tl.where(takes, WHOLE, PLAIN), state + 1)
        state = tl.where(done, DONE, tl.where(stays, tl.where(fine, further, LOST), tl.where(i > 1, TESTING, REST)))
        i -= tl.where(stays, 0, 1)
    lost = state == LOST
    place, _ = get_place(places, drafts, x, i, target, draft)
    token = tl.where(lost, argmax_finite(target, place.p, lost, S), token)
    return i, token, logprob, status | tl.where(lost, INVALID_ROW, 0)

# SPDX-License-Identifier: Apache-2.0
"""The end of a walk by a rule: on the way back to the last position that stays, and the final token there
(csrc/ops/verify_chain/{block_verification,position}.h). A program serves one request: S.ROWS is 1."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.final_token import EMPTY_RESIDUAL, INVALID_ROW, has_mass, pick_chunk, pick_lane
from ..core.mixture import CAPPED, MIXED, NOBODY, TARGET, Mixture, each_mixture, hot_of, is_p, mixed_chunk
from ..core.philox import DOMAIN_ACCEPT, DOMAIN_FINAL, uniform_of
from ..core.row import (
    CHUNK,
    FLT_MAX,
    by_row,
    chunks_from,
    chunks_of,
    each,
    each_request,
    finite_max,
    is_bad,
    max_of,
    some,
)
from ..core.rows import draft_prob, each_dist, entries, is_something, is_valid, prob
from ..rules.rule_dist import complete
from .position import get_position

# Where the way back stands: looking for the last position that stays, or drawing at it from what is left of pi, from
# pi, or
# from p.
TESTING = tl.constexpr(0)
REST = tl.constexpr(1)
WHOLE = tl.constexpr(2)
PLAIN = tl.constexpr(3)
LOST = tl.constexpr(4)
DONE = tl.constexpr(5)


class Left(NamedTuple):
    """(m pi - minus q)+ at a position."""

    p: Any
    q: Any
    pi: Any
    m: Any
    minus: Any


@triton.jit
def reads_p(left):
    return (left.pi.form == CAPPED) | (left.pi.of_p != 0) | (left.pi.score_row == TARGET)


@triton.jit
def sum_left(target, draft, left, masses, sums, S):
    """Its total in float64, NaN where p is no law; its chunks stay in masses."""
    total = tl.full([S.ROWS], 0.0, tl.float64)
    chunks = chunks_of(target)
    b = each_request(S)
    p, q, pi = each_dist(left.p, S), each_dist(left.q, S), each_mixture(left.pi, S)
    m, minus, reads, alive = each(left.m, S), each(left.minus, S), each(reads_p(left), S), each(sums, S)
    tl.debug_barrier()
    for begin in range(0, tl.max(tl.where(sums, chunks, 0), 0), S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < chunks)
        z, w = mixed_chunk(target, draft, b, p, q, pi, m, minus, c, reads, here, S)
        mass = tl.sum(w, 1)
        if target.PROBS:
            mass = tl.where(is_bad(z), float("nan"), mass)
        tl.store(masses + b * chunks + c, mass, mask=here)
        total += tl.sum(by_row(mass.to(tl.float64), S), 1)
    tl.debug_barrier()
    return total


@triton.jit
def draw_left(target, draft, b, left, masses, total, v, found, S):
    """Inverse CDF over the chunk sums left behind."""
    chunks = chunks_of(target)
    c, into, mass = pick_chunk(masses, b * chunks, chunks, v * total, found, S)
    _, w = mixed_chunk(target, draft, b, left.p, left.q, left.pi, left.m, left.minus, c, reads_p(left), found, S)
    return c.to(tl.int64) * CHUNK + pick_lane(w, into, mass, S)


@triton.jit
def argmax_finite(target, p, needed, S):
    """The first of the largest finite entries; 0 where there is none."""
    top = tl.full([S.ROWS], -float("inf"), tl.float32)
    id = tl.full([S.ROWS], 0, tl.int32)
    d = each_dist(p, S)
    alive = each(needed, S)
    for begin in range(0, tl.max(tl.where(needed, chunks_of(target), 0), 0), S.TOGETHER):
        c = chunks_from(begin, S)
        z, _ = entries(target, each_request(S), d, c, alive, False, S)
        z = tl.where(z < float("inf"), z, -float("inf"))
        most = max_of(finite_max(z), S)
        at = (c * CHUNK)[:, None] + tl.arange(0, S.WIDTH)[None, :]
        first = tl.min(tl.where(z == each(most, S)[:, None], at, 2147483647), 1)
        id = tl.where(most > top, tl.min(by_row(first, S), 1), id)
        top = tl.maximum(top, most)
    return id.to(tl.int64)


@triton.jit
def left_at(target, draft, position, state, hopeless, alpha, needed, S):
    """What is to be drawn from: (r pi - q)+ where a tested draft takes q away, else pi; or p itself."""
    pi = complete(target, draft, position.p, position.q, position.pi, alpha.first, needed & ~hopeless, S)
    alone = state == PLAIN
    form = tl.where(alone, MIXED, pi.form)
    of_p, of_q = tl.where(alone, 1.0, pi.of_p), tl.where(alone, 0.0, pi.of_q)
    score_row = tl.where(alone, NOBODY, pi.score_row)
    pi = Mixture(form, score_row, of_p, of_q, pi.threshold, pi.confidence_gap, pi.open)
    takes = position.tested & is_something(position.q) & (state <= REST)
    m = tl.where(takes, position.r, 1.0).to(tl.float32)
    # Of p itself a one-hot draft leaves nothing.
    one = tl.full([S.ROWS], 1.0, tl.float32)
    minus = tl.where(takes, tl.where(is_p(pi) & (position.q.hot >= 0), FLT_MAX, one), 0.0)
    return Left(position.p, position.q, pi, m, minus), takes


@triton.jit
def stays_at(draft, b, position, hot, total, u):
    """Of a block: whether u < h_i."""
    r = position.r
    q_hot, _ = prob(draft, b, position.q, hot, hot >= 0)
    s = tl.where(hot >= 0, tl.maximum(r - draft_prob(q_hot), 0.0), total)
    return u < tl.where(position.tested & (r < 1) & (s == s), s / (s + 1 - r), r)


@triton.jit
def resample(drafts, x, i, status, target, draft, positions, masses, random, alpha, block, S):
    """The position where the walk ends, the final token there, ln p of it, and the status.

    In a block: the last i with u < h_i, h_i = s_i / (s_i + 1 - r_i), s_i = sum (r_i pi_i - q_i)+; h = r at the last.
    After a tested draft the token is from (r pi - q)+; from pi where nothing is to be taken away or nothing is left; or
    else from p."""
    columns = drafts.G + 1
    v = uniform_of(random, x.b, drafts.G, columns, DOMAIN_FINAL, x.b * 0, x.b >= 0)
    state = tl.where(block & (i > 0), TESTING, REST)
    empty = tl.full([S.ROWS], 0, tl.int32)
    token = x.b * 0
    logprob = tl.full([S.ROWS], float("nan"), tl.float64)
    while some(state < LOST):
        position, draws = get_position(positions, drafts, x, i, target, draft, S)
        testing = state == TESTING
        before = tl.maximum(i - 1, 0)
        u = uniform_of(random, x.b, before, columns, DOMAIN_ACCEPT, before, x.b >= 0)
        fine = draws & is_valid(target, position.p)
        hopeless = testing & False
        if not target.PROBS:
            hopeless = testing & (u > 1.01 * position.r)  # s <= r, up to rounding, so h <= r
        left, takes = left_at(target, draft, position, state, hopeless, alpha, fine, S)
        hot = hot_of(left.pi, left.p, left.q)
        sums = fine & ~hopeless & (hot < 0)
        total = sum_left(target, draft, left, masses, sums, S)
        stays = ~testing | (~hopeless & stays_at(draft, x.b, position, hot, total, u))
        found = stays & sums & has_mass(total)
        done = stays & (~draws | (fine & ((hot >= 0) | found)))
        token = tl.where(done & (hot >= 0), hot, token)
        if some(found):
            token = tl.where(found, draw_left(target, draft, x.b, left, masses, total, v, found, S), token)
        _, log_p = prob(target, x.b, left.p, token, done & draws)
        logprob = tl.where(done & draws, log_p, logprob)
        empty = tl.where(stays & sums & ~found, EMPTY_RESIDUAL, empty)
        status |= tl.where(done, empty, 0)
        further = tl.where(state <= REST, tl.where(takes, WHOLE, PLAIN), state + 1)
        elsewhere = tl.where(i > 1, TESTING, REST)
        state = tl.where(done, DONE, tl.where(stays, tl.where(fine, further, LOST), elsewhere))
        i -= tl.where(stays, 0, 1)
    lost = state == LOST
    position, _ = get_position(positions, drafts, x, i, target, draft, S)
    token = tl.where(lost, argmax_finite(target, position.p, lost, S), token)
    return i, token, logprob, status | tl.where(lost, INVALID_ROW, 0)

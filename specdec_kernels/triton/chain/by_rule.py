# SPDX-License-Identifier: Apache-2.0
"""verify_chain with a rule or the method "block" (csrc/ops/verify_chain/{by_rule,token,block_verification}.h).

One program walks the positions of one request, so S.ROWS is 1.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core import launch
from ..core.draw import (
    DOMAIN_ACCEPT,
    DOMAIN_FINAL,
    EMPTY_RESIDUAL,
    INVALID_BONUS,
    INVALID_ROW,
    has_mass,
    pick_chunk,
    pick_lane,
    uniform_of,
)
from ..core.memory import is_present, some
from ..core.row import CHUNK, FLT_MAX, by_row, chunks_from, chunks_of, each, each_request, finite_max, is_bad, max_of
from ..core.rows import accept_test, draft_prob, each_dist, entries, is_draft_prob, is_something, is_valid, prob
from ..rules import EXACT, LENIENCE, SYNTHETIC
from ..rules.rule import accept_by_target, replaces_target, rule_of, synthetic_rate
from ..rules.rule_dist import (
    CAPPED,
    MIXED,
    NOBODY,
    TARGET,
    Mixture,
    complete,
    each_mixture,
    hot_of,
    is_p,
    mixed_chunk,
    mixed_prob,
)
from .draft_test import Drafts, Request, dist_at, load_drafts, request_of
from .position import Position, get_position, look, put_position

# States of resample(). TESTING: the last position that a block keeps is not found yet. At this position, the token is
# drawn from the residual of pi (REST), from pi (WHOLE) or from p (PLAIN), the first that has mass. LOST: none has mass,
# or p is invalid. DONE: a token was chosen, or none is drawn there.
TESTING = tl.constexpr(0)
REST = tl.constexpr(1)
WHOLE = tl.constexpr(2)
PLAIN = tl.constexpr(3)
LOST = tl.constexpr(4)
DONE = tl.constexpr(5)


class Left(NamedTuple):
    """The weights (m pi - minus q)+ at a position, from which a token may be drawn."""

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
    """Return the sum of the weights in float64; NaN if p is a row of probabilities that is read and holds NaN or +inf.

    The chunk sums stay in `masses`."""
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
    """Return a token drawn by inverse CDF over the chunk sums that sum_left() stored."""
    chunks = chunks_of(target)
    c, into, mass = pick_chunk(masses, b * chunks, chunks, v * total, found, S)
    _, w = mixed_chunk(target, draft, b, left.p, left.q, left.pi, left.m, left.minus, c, reads_p(left), found, S)
    return c.to(tl.int64) * CHUNK + pick_lane(w, into, mass, S)


@triton.jit
def argmax_finite(target, p, needed, S):
    """Return the first id of the largest finite entry; 0 if no entry is finite."""
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
    """Return the weights to draw from, and whether they subtract q.

    They are (r pi - q)+ if a draft was tested at the position, unless these have been found to have no mass. Otherwise
    they are pi or, in the state PLAIN, p.

    hopeless: the position is not kept in any case, so the sums that pi lacks are not computed."""
    pi = complete(target, draft, position.p, position.q, position.pi, alpha.first, needed & ~hopeless, S)
    alone = state == PLAIN
    form = tl.where(alone, MIXED, pi.form)
    of_p, of_q = tl.where(alone, 1.0, pi.of_p), tl.where(alone, 0.0, pi.of_q)
    score_row = tl.where(alone, NOBODY, pi.score_row)
    pi = Mixture(form, score_row, of_p, of_q, pi.threshold, pi.confidence_gap, pi.open)
    takes = position.tested & is_something(position.q) & (state <= REST)
    m = tl.where(takes, position.r, 1.0).to(tl.float32)
    # If pi is p, the token of a one-hot draft must keep no weight at all, not even by rounding.
    one = tl.full([S.ROWS], 1.0, tl.float32)
    minus = tl.where(takes, tl.where(is_p(pi) & (position.q.hot >= 0), FLT_MAX, one), 0.0)
    return Left(position.p, position.q, pi, m, minus), takes


@triton.jit
def stays_at(draft, b, position, hot, total, u):
    """Return whether a block keeps a position, which it does if u < h_i (see resample). total: s_i, unless pi has only
    the token `hot`."""
    r = position.r
    q_hot, _ = prob(draft, b, position.q, hot, hot >= 0)
    s = tl.where(hot >= 0, tl.maximum(r - draft_prob(q_hot), 0.0), total)
    return u < tl.where(position.tested & (r < 1) & (s == s), s / (s + 1 - r), r)


@triton.jit
def resample(drafts, x, i, status, target, draft, positions, masses, random, alpha, block, S):
    """Return the position where the walk ends, the final token there, its ln p, and the status.

    A block ends at the last i with u < h_i, or at 0 if there is none. Here h_i = s_i / (s_i + 1 - r_i) with
    s_i = sum (r_i pi_i - q_i)+. If no draft was tested at i, as after the last draft, h_i = r_i.

    The final token is drawn from (r pi - q)+ if a draft was tested there. If none was, or this has no mass, it is drawn
    from pi, and if pi has no mass, from p."""
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


@triton.jit
def walk(drafts, x, target, draft, positions, random, rules, rule, alpha, block, SCORES_END: tl.constexpr, S):
    """Walk until the drafts end, one is rejected or, in a block, the next position cannot be reached. Return the
    position and the status bits.

    In a block r_0 = 1 and r_i = min(1, r_(i-1) pi_(i-1)(d_i) / q_(i-1)(d_i)). The sums that pi lacks are not computed
    if its lower bound already accepts the draft, or already makes the next r 1."""
    i = x.b * 0
    r = tl.full([S.ROWS], 1.0, tl.float64)
    status = tl.full([S.ROWS], 0, tl.int32)
    walking = i == 0
    of_law = replaces_target(rule)
    while some(walking):
        seen = look(drafts, x, i, target, draft, rule, alpha, r, SCORES_END, S)
        position, p_d, q_d = seen.position, seen.p, seen.q
        status |= seen.status
        u = uniform_of(random, x.b, i, drafts.G + 1, DOMAIN_ACCEPT, i, walking)
        inside = seen.d < target.V
        drawn = position.tested & is_draft_prob(q_d)
        enough = draft_prob(q_d) / r
        pi_d = mixed_prob(position.pi, p_d, q_d, seen.kept, inside)
        taken = tl.where(block, drawn & (pi_d >= enough), accept_test(pi_d, q_d, u))
        needed = drawn & of_law & (position.pi.open > 0) & ~taken
        pi = complete(target, draft, position.p, position.q, position.pi, alpha.first, needed, S)
        pi_d = mixed_prob(pi, p_d, q_d, seen.kept, inside)
        lenient = (rule == LENIENCE) & accept_test(p_d, q_d, alpha.first * u)
        accepted = tl.where(of_law, accept_test(pi_d, q_d, u), lenient)
        if some(~of_law):
            accepted |= ~of_law & accept_by_target(rule, alpha, seen, u, target)
            synthetic = rule == SYNTHETIC
            accepted |= synthetic & (u < synthetic_rate(rules, alpha, x.b, i, walking & synthetic & (i < drafts.G)))
        next_r = tl.where(pi_d >= enough, 1.0, tl.where(pi_d > 0, r * pi_d / draft_prob(q_d), 0.0))
        put_position(positions, drafts, x, i, Position(position.p, position.q, pi, position.tested, r))
        walking = tl.where(block, drawn & (next_r > 0), position.tested & accepted)
        r = tl.where(block & walking, next_r, r)
        i += tl.where(walking, 1, 0)
    return i, status


@triton.jit
def put_tokens(drafts, x, n, token, logprob, status, target, out, POSITIONS: tl.constexpr, S):
    i = tl.arange(0, POSITIONS).to(tl.int64)[None, :]
    taken = i < n[:, None]
    each = Request(x.b[:, None], x.start[:, None], x.g[:, None])
    d = load_drafts(drafts, each, i, taken)
    p = dist_at(target, drafts, each, i, taken, d * 0 - 1, S)
    _, log_p = prob(target, each.b, p, d, taken)
    last = i == n[:, None]
    to = each.b * (drafts.G + 1) + i
    row = i <= drafts.G
    log_p = tl.where(taken, log_p, tl.where(last, logprob[:, None], 0.0))
    tl.store(out.tokens + to, tl.where(taken, d, tl.where(last, token[:, None], -1)), mask=row)
    tl.store(out.logprobs + to, log_p.to(tl.float32), mask=row)
    tl.store(out.num_accepted + x.b, n.to(tl.int32))
    tl.store(out.status + x.b, status)


@triton.jit
def verify_request(
    drafts, count, bonus_stride, target, draft, rules, random, out, positions, masses,
    BLOCK: tl.constexpr, SCORES_END: tl.constexpr, POSITIONS: tl.constexpr, S,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = is_present(count, b)
    rule, alpha = rule_of(rules, b, exists)
    block = BLOCK & replaces_target(rule)
    mine = exists & (block | (rule != EXACT))
    tl.store(out.by_rule + b, mine.to(tl.int32))
    if some(mine):
        x = request_of(drafts, b, b >= 0)
        n, status = walk(drafts, x, target, draft, positions, random, rules, rule, alpha, block, SCORES_END, S)
        n, token, logprob, status = resample(
            drafts, x, n, status, target, draft, positions, masses, random, alpha, block, S
        )
        if drafts.given.bonus_tokens is not None:
            bonus = tl.load(drafts.given.bonus_tokens + b * bonus_stride).to(tl.int64)
            given = n == x.g
            token = tl.where(given, tl.maximum(bonus, 0), token)
            status |= tl.where(given & ((bonus < 0) | (bonus >= target.V)), INVALID_BONUS, 0)
        put_tokens(drafts, x, n, token, logprob, status, target, out, POSITIONS, S)


@launch.kernel
def request_kernel(
    count, G, D, token_batch_stride, token_stride, bonus_stride, given, target, draft, rules, random, out, positions,
    masses, BLOCK: tl.constexpr, SCORES_END: tl.constexpr, POSITIONS: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    # Triton drops the constants of a tuple that is assigned, so this one is made in the call.
    verify_request(
        Drafts(given, token_batch_stride, token_stride, G, D), count, bonus_stride, target, draft, rules, random, out,
        positions, masses, BLOCK, SCORES_END, POSITIONS, S,
    )  # fmt: skip

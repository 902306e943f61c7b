# SPDX-License-Identifier: Apache-2.0
"""verify_chain by a rule or by block: a program walks the positions of one request
(csrc/ops/verify_chain/{by_rule,token,block_verification}.h), so S.ROWS is 1."""

import triton
import triton.language as tl

from ..core import launch
from ..core.final_token import INVALID_BONUS
from ..core.mixture import mixed_prob
from ..core.padded import is_present
from ..core.philox import DOMAIN_ACCEPT, uniform_of
from ..core.row import some
from ..core.rows import accept_test, draft_prob, is_draft_prob, prob
from ..rules.codes import EXACT, LENIENCE, RELAXED, SYNTHETIC, THRESHOLDS, TYPICAL
from ..rules.rule import replaces_target, rule_of, synthetic_rate
from ..rules.rule_dist import complete
from .draft_test import Drafts, Request, dist_at, load_drafts, request_of
from .position import Position, look, put_position
from .resample import resample


@triton.jit
def accept_by_target(rule, alpha, seen, u, target):
    """The rules that read p alone, and lenience at a greedy target: p1(d) >= l max p1 (csrc/rules/acceptance.h)."""
    p, of_p, p_d = seen.position.p, seen.of_p, seen.p
    typical = (p_d > alpha.first) | (
        (p_d > 0) & (p_d > alpha.second * tl.exp(-tl.where(p.hot >= 0, 0.0, of_p.entropy)))
    )
    if target.PROBS:
        p1_d = p_d
    else:  # without a row there is no draft to judge
        p1_d = tl.exp(seen.z.to(tl.float64) - of_p.max) * of_p.largest
        typical |= (p_d > 0) & (p.hot < 0) & (p_d > alpha.second * tl.exp(-p.stats.log_norm.to(tl.float64)))
    relaxed = (p1_d > 0) & (p1_d >= of_p.largest - alpha.second) & (of_p.above.to(tl.float64) < alpha.first)
    thresholds = (p_d >= alpha.first) | (u * alpha.second < p_d)
    lenient = (p.hot >= 0) & (seen.z.to(tl.float64) - p.stats.max.to(tl.float64) >= tl.log(alpha.first))
    accepted = (rule == TYPICAL) & typical
    accepted |= (rule == RELAXED) & relaxed
    accepted |= (rule == THRESHOLDS) & thresholds
    return accepted | ((rule == LENIENCE) & lenient)


@triton.jit
def walk(drafts, x, target, draft, positions, random, rules, rule, alpha, block, SCORES_END: tl.constexpr, S):
    """Looks at positions until one is rejected or, in a block, cannot be reached: the position, and the bits of status.

    In a block r_0 = 1, r_i = min(1, r_(i-1) pi_(i-1)(d_i) / q_(i-1)(d_i)). Where what is known of pi already accepts,
    or makes the next r 1, the rest of it is not summed."""
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
    # A tuple that is assigned loses its constants, so this one goes straight into the call.
    verify_request(
        Drafts(given, token_batch_stride, token_stride, G, D), count, bonus_stride, target, draft, rules, random, out,
        positions, masses, BLOCK, SCORES_END, POSITIONS, S,
    )  # fmt: skip

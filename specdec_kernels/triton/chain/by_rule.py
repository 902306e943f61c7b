# SPDX-License-Identifier: Apache-2.0
"""verify_chain by a rule or by block: a program walks the positions of one request (csrc/ops/verify_chain/{by_rule,token,block_verification}.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core import launch
from ..accept import accept_test, is_draft_prob
from .draft_test import INVALID_BONUS, gathered, requests, row_of
from ..core.pair import Side, Sizes, draft_prob
from ..core.philox import DOMAIN_ACCEPT
from ..rules.rule_dist import complete, pi_prob
from .position import Coins, Drafts, Place, Places, Request, coin, look, put_place
from ..rules.rule import EXACT, LENIENCE, SYNTHETIC, THRESHOLDS, RELAXED, TYPICAL, Rules, replaces_target, rule_of
from .resample import settle


@triton.jit
def accept_by_target(rule, alpha, p_d, z_d, of_p, p, u, target):
    """The rules that read p alone, and lenience at a greedy target: p1(d) >= l max p1 (csrc/rules/acceptance.h)."""
    typical = (p_d > alpha.first) | ((p_d > 0) & (p_d > alpha.second * tl.exp(-tl.where(p.hot >= 0, 0.0, of_p.entropy))))
    if target.PROBS:
        p1_d = p_d
    else:  # without a row there is no draft to judge
        p1_d = tl.exp(z_d.to(tl.float64) - of_p.most) * of_p.largest
        typical |= (p_d > 0) & (p.hot < 0) & (p_d > alpha.second * tl.exp(-p.log_norm.to(tl.float64)))
    relaxed = (p1_d > 0) & (p1_d >= of_p.largest - alpha.second) & (of_p.above.to(tl.float64) < alpha.first)
    thresholds = (p_d >= alpha.first) | (u * alpha.second < p_d)
    lenient = (p.hot >= 0) & (z_d.to(tl.float64) - p.most.to(tl.float64) >= tl.log(alpha.first))
    accepted = (rule == TYPICAL) & typical
    accepted |= (rule == RELAXED) & relaxed
    accepted |= (rule == SYNTHETIC) & (u < alpha.first)
    accepted |= (rule == THRESHOLDS) & thresholds
    return accepted | ((rule == LENIENCE) & lenient)


@triton.jit
def walk(drafts, x, target, draft, places, coins, rule, alpha, block, SCORES_END: tl.constexpr, S):
    """Looks at positions until one is rejected or, in a block, cannot be reached: the position, and the bits of status.

    In a block r_0 = 1, r_i = min(1, r_(i-1) pi_(i-1)(d_i) / q_(i-1)(d_i)). Where what is known of pi already accepts, or makes the
    next r 1, the rest of it is not summed."""
    i = x.b * 0
    r = tl.full([], 1.0, tl.float64)
    status = tl.full([], 0, tl.int32)
    walking = i == 0
    while walking:
        place, d, p_d, z_p, q_d, keeps, of_p, bits = look(drafts, x, i, target, draft, rule, alpha, r, SCORES_END, S)
        status |= bits
        u = coin(coins, drafts, x, DOMAIN_ACCEPT, i, i)
        inside = d < target.V
        drawn = place.tested & is_draft_prob(q_d)
        enough = draft_prob(q_d) / r
        of_law = replaces_target(rule)
        pi_d = pi_prob(place.pi, p_d, q_d, keeps, inside)
        taken = tl.where(block, drawn & (pi_d >= enough), accept_test(pi_d, q_d, u))
        needed = drawn & of_law & (place.pi.open > 0) & ~taken
        pi = complete(target, draft, place.p, place.q, place.pi, alpha.first, needed, S)
        pi_d = pi_prob(pi, p_d, q_d, keeps, inside)
        accepted = tl.where(of_law, accept_test(pi_d, q_d, u), (rule == LENIENCE) & accept_test(p_d, q_d, alpha.first * u))
        if ~of_law:
            accepted |= accept_by_target(rule, alpha, p_d, z_p, of_p, place.p, u, target)
        next_r = tl.where(pi_d >= enough, 1.0, tl.where(pi_d > 0, r * pi_d / draft_prob(q_d), 0.0))
        put_place(places, drafts, x, i, Place(place.p, place.q, pi, place.tested, r))
        walking = tl.where(block, drawn & (next_r > 0), place.tested & accepted)
        r = tl.where(block & walking, next_r, r)
        i += tl.where(walking, 1, 0)
    return i, status


class Out(NamedTuple):
    tokens: Any  # [B, G+1]
    num_accepted: Any  # [B]
    logprobs: Any  # [B, G+1]
    status: Any  # [B]
    by_rule: Any  # [B]: whether a request is done here, and not by stop_kernel and final_kernel


@triton.jit
def verify_request(
    drafts, D, bonus_tokens, bonus_stride, target, draft, rules, coins, out, places, masses, BLOCK: tl.constexpr, SCORES_END: tl.constexpr,
    POSITIONS: tl.constexpr, S,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    rule, alpha = rule_of(rules, b)
    block = BLOCK & replaces_target(rule)
    mine = block | (rule != EXACT)
    tl.store(out.by_rule + b, mine.to(tl.int32))
    if mine:
        start, g = requests(b, True, drafts.G, drafts.cu_draft, D)
        x = Request(b, start, g.to(tl.int64))
        n, status = walk(drafts, x, target, draft, places, coins, rule, alpha, block, SCORES_END, S)
        n, token, logprob, status = settle(drafts, x, n, status, target, draft, places, masses, coins, alpha, block, S)
        if bonus_tokens is not None:
            bonus = tl.load(bonus_tokens + b * bonus_stride).to(tl.int64)
            given = n == g
            token = tl.where(given, tl.maximum(bonus, 0), token)
            status |= tl.where(given & ((bonus < 0) | (bonus >= target.V)), INVALID_BONUS, 0)

        i = tl.arange(0, POSITIONS).to(tl.int64)
        kept = i < n
        RAGGED: tl.constexpr = drafts.cu_draft is not None
        at = (start + i) * drafts.stride if RAGGED else b * drafts.batch_stride + i * drafts.stride
        d = tl.load(drafts.tokens + at, mask=kept, other=-1).to(tl.int64)
        index, row = row_of(b, start, i, drafts.G, target.extra, target.batch_stride, target.row_stride, RAGGED)
        _, log_p, _, _, _ = gathered(target.rows, target.V, target.stats, index, row, d, kept, target.PROBS)
        to = b * (drafts.G + 1) + i
        tl.store(out.tokens + to, tl.where(kept, d, tl.where(i == n, token, -1)), mask=i <= drafts.G)
        tl.store(out.logprobs + to, tl.where(kept, log_p, tl.where(i == n, logprob, 0.0)).to(tl.float32), mask=i <= drafts.G)
        tl.store(out.num_accepted + b, n.to(tl.int32))
        tl.store(out.status + b, status)


@launch.kernel
def request_kernel(
    B, G, cu_draft, D, draft_tokens, token_batch_stride, token_stride, bonus_tokens, bonus_stride,
    target, V, target_batch_stride, target_row_stride, target_extra, target_stats,
    draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats,
    rule, rule_stride, alpha, alpha_stride, second_stride, seed, seed_stride, offset, offset_stride, uniforms,
    tokens, num_accepted, logprobs, status, by_rule, place_ints, place_floats, masses,
    BLOCK: tl.constexpr, SCORES_END: tl.constexpr, TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr, POSITIONS: tl.constexpr,
    TOGETHER: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    # A tuple that is assigned loses its constants, so these go straight into the call.
    verify_request(
        Drafts(draft_tokens, token_batch_stride, token_stride, G, cu_draft, bonus_tokens is not None), D, bonus_tokens, bonus_stride,
        Side(target, V, target_batch_stride, target_row_stride, target_extra, target_stats, TARGET_PROBS),
        Side(draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats, DRAFT_PROBS),
        Rules(rule, rule_stride, alpha, alpha_stride, second_stride), Coins(uniforms, seed, seed_stride, offset, offset_stride),
        Out(tokens, num_accepted, logprobs, status, by_rule), Places(place_ints, place_floats), masses, BLOCK, SCORES_END, POSITIONS,
        Sizes(TOGETHER, WIDTH, CHUNKS),
    )  # fmt: skip

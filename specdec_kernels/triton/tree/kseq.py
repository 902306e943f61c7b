# SPDX-License-Identifier: Apache-2.0
"""K-SEQ at a node (csrc/ops/verify_tree/kseq.h): its drafts of one law are counted, then tested."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.final_token import INVALID_DRAFT, INVALID_ROW, has_mass
from ..core.kseq import Pairs, kseq_search
from ..core.residual import Subtraction, get_subtraction, put_subtraction, sum_chunks
from ..core.row import some
from ..core.rows import accept_test, draft_prob, is_something, prob
from .tree import test_uniform
from .walk import draft_dist


class Drafts(NamedTuple):
    """The drafts at a node: those of the first one's law."""

    counting: Any
    k: Any
    row: Any  # that the first was drawn from; -2: not known yet
    token: Any  # of the first
    others: Any  # drafts of another law
    rho: Any  # 0: not known yet


@triton.jit
def no_drafts(zero):
    return Drafts(zero == 0, zero, zero - 2, zero, zero != 0, zero.to(tl.float64))


@triton.jit
def choose_drafts(mask, a, b):
    counting = (mask & a.counting) | (~mask & b.counting)
    others = (mask & a.others) | (~mask & b.others)
    row, token = tl.where(mask, a.row, b.row), tl.where(mask, a.token, b.token)
    return Drafts(counting, tl.where(mask, a.k, b.k), row, token, others, tl.where(mask, a.rho, b.rho))


@triton.jit
def one_law(drafts, row, token):
    """Whether a draft was drawn from the law of the first."""
    return (row == drafts.row) & ((row >= 0) | (token == drafts.token))


@triton.jit
def count_drafts(sides, residual, drafts, row, token, found, counting, S):
    """Counts the draft at hand, or ends the count where there is none; and what then has nothing to be tested."""
    one_more = counting & found
    first = one_more & (drafts.row == -2)
    first_row, first_token = tl.where(first, row, drafts.row), tl.where(first, token, drafts.token)
    still = drafts.counting & (found | ~counting)
    drafts = Drafts(still, drafts.k, first_row, first_token, drafts.others, drafts.rho)
    same = one_law(drafts, row, token)
    k = drafts.k + tl.where(one_more & same, 1, 0)
    drafts = Drafts(still, k, first_row, first_token, drafts.others | (one_more & ~same), drafts.rho)
    asked = counting & ~found
    stopped = asked & (drafts.k == 0)
    if sides.target.PROBS:
        asked &= ~stopped
        if some(asked):
            stopped |= asked & ~has_mass(sum_chunks(sides, residual, asked, S))
    return drafts, stopped


@triton.jit
def find_rho(tree, sides, residual, drafts, child, token, known, first, S):
    """rho of the drafts that are the first to be tested, and norm(p - c min(q, p / rho)), c = p_acc / beta, which waits
    on top of the residual; where there is none, and the bits of status."""
    q, status, _ = draft_dist(tree, sides, residual.b, child, token, known, first, S)
    stopped = first & (~is_something(q) | ((drafts.row < 0) & (token >= sides.target.V)))
    first &= ~stopped
    # A tuple that is assigned loses its constants, so this one goes straight into the call.
    rho, beta, p_acc = kseq_search(Pairs(sides.target, sides.draft, residual.b, residual.p, q), drafts.k, first, S)
    unlawful = first & (beta != beta)  # a probability row of q that is no law is found out by its sum
    status |= tl.where(unlawful, INVALID_ROW | INVALID_DRAFT, 0)
    stopped |= unlawful
    first &= ~unlawful
    c = tl.where(beta > 0, p_acc / beta, rho)
    one = tl.full([S.ROWS], 1.0, tl.float32)
    link = Subtraction(q, one, c.to(tl.float32), (1 / rho).to(tl.float32), token * 0 - 1)
    put_subtraction(sides, residual.at + residual.n, link, first)
    return tl.where(first, rho, drafts.rho), stopped, status


@triton.jit
def test_by_kseq(tree, sides, random, residual, drafts, child, column, token, known, testing, S):
    """Each draft is accepted with probability min(1, p / (rho q)), rho the best one for p, q and k. If none is, the
    token is drawn from what waits on top of the residual."""
    stopped = testing & False
    status = tl.zeros([S.ROWS], tl.int32)
    first = testing & (drafts.rho == 0)
    if some(first):
        rho, stopped, status = find_rho(tree, sides, residual, drafts, child, token, known, first, S)
        drafts = Drafts(drafts.counting, drafts.k, drafts.row, drafts.token, drafts.others, rho)
    testing &= ~stopped
    p, _ = prob(sides.target, residual.b, residual.p, token, testing)
    q = get_subtraction(sides, residual.at + residual.n, testing).q
    q_t, _ = prob(sides.draft, residual.b, q, token, testing)
    q_t = draft_prob(q_t)
    status |= tl.where(testing & (drafts.row >= 0) & ~(q_t > 0), INVALID_DRAFT, 0)
    u = test_uniform(tree, random, residual.b, column, testing)
    return testing & accept_test(p, q_t, u * drafts.rho), stopped, status, drafts

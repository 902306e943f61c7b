# SPDX-License-Identifier: Apache-2.0
"""The walk from the root down, for a block of requests: one test of each in turn, by the rule of the method
(csrc/ops/verify_tree: descend in walk.h; greedy.h, target_only.h, recursive.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..accept import accept_test
from ..core.mixture import first_weight, standing
from ..core.residual import chain_sum, chain_weight, draft_of, left_of, reduce
from ..core.final_token import has_mass
from ..chain.draft_test import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW
from ..core.kseq import search_laws
from ..core.links import Chain, Link, get_link, put_link, subtracting
from ..core.philox import DOMAIN_ACCEPT
from ..rules.rule import THRESHOLDS
from ..core.side import choose, draft_prob, is_something, is_valid, offset_of, one_hot, prob
from .node_dist import rule_here, stand
from .tree import INSIDE, OUTSIDE, Tests, coin, entry, is_bad_tree, next_test, some
from .walk import draft_law, draft_row, finish, keep, target_law

KSEQ = tl.constexpr(0)
RECURSIVE = tl.constexpr(1)
RECURSIVE_WITHOUT_REPLACEMENT = tl.constexpr(2)
TARGET_ONLY = tl.constexpr(3)
GREEDY = tl.constexpr(4)
TRAVERSAL = tl.constexpr(5)


@triton.jit
def test_by_target(rows, chain, seen, u, single, token, testing):
    """One coin falls on [0, 1), the children's probabilities are laid from 0 on one after the other, and the child it falls on is
    accepted; or, where `single` is given, one whose probability reaches it. A second child of the same token is skipped."""
    _, gone = chain_weight(rows, chain, token, testing)
    testing &= ~gone
    p, _ = prob(rows.target, chain.b, chain.p, token, testing)
    seen = tl.where(testing, seen + p, seen)
    accepted = testing & (u < seen)
    if single is not None:
        accepted |= testing & (p >= single)
    rejected = testing & ~accepted & (seen == seen)
    one = tl.full(token.shape, 1.0, tl.float32)
    put_link(rows, chain.at + chain.n, subtracting(one_hot(token), one, one, token), rejected)
    return accepted, testing & (seen != seen), chain.n + tl.where(rejected, 1, 0), seen


@triton.jit
def test_recursively(tree, rows, random, chain, total, held, child, column, token, known, known_row, testing, REPLACES: tl.constexpr, S):
    """x ~ q is accepted with probability min(1, r(x) / q(x)), else r becomes norm((r - q)+). Without replacement q then loses x, and
    a second child of the same token is skipped."""
    r, gone = chain_weight(rows, chain, token, testing)
    if not REPLACES:
        testing &= ~gone
    r /= total
    stopped = testing & (r != r)
    testing &= r == r
    q, bits, known, known_row = draft_law(tree, rows, chain.b, child, token, known, known_row, testing, S)
    share = tl.full([S.ROWS], 1.0, tl.float64)
    taken = token * 0 - 1
    if not REPLACES:
        q, share = left_of(rows, q, chain, testing, S)
        taken = token
    q_t, no_prob = draft_of(rows, chain.b, token, q, share, testing, S)
    bits |= no_prob
    u = coin(random, chain.b, column, DOMAIN_ACCEPT, column, testing)
    accepted = testing & accept_test(r, q_t, u)
    rejected = testing & ~accepted
    n = chain.n
    if some(rejected):
        one = tl.full([S.ROWS], 1.0, tl.float64)
        n, total, kept, holds = reduce(rows, chain, total, q, one, one / share, taken, rejected, S)
        stopped |= rejected & (kept != kept)
        bits |= tl.where(rejected & (kept == 0) & is_something(q), EMPTY_RESIDUAL, 0)
        held = tl.where(rejected, holds, held)
    return accepted, stopped, n, total, held, bits, known, known_row


class Drafts(NamedTuple):
    """The drafts at a node under K-SEQ: those of the first one's law. They are counted, then tested."""

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
def count_drafts(rows, chain, drafts, row, token, found, counting, S):
    """Counts the draft at hand, or ends the count where there is none; and what then has nothing to be tested."""
    one_more = counting & found
    first = one_more & (drafts.row == -2)
    drafts = Drafts(
        drafts.counting & (found | ~counting), drafts.k, tl.where(first, row, drafts.row), tl.where(first, token, drafts.token), drafts.others,
        drafts.rho,
    )  # fmt: skip
    same = one_law(drafts, row, token)
    k = drafts.k + tl.where(one_more & same, 1, 0)
    drafts = Drafts(drafts.counting, k, drafts.row, drafts.token, drafts.others | (one_more & ~same), drafts.rho)
    asked = counting & ~found
    stopped = asked & (drafts.k == 0)
    if rows.target.PROBS:
        asked &= ~stopped
        if some(asked):
            stopped |= asked & ~has_mass(chain_sum(rows, chain, asked, S))
    return drafts, stopped


@triton.jit
def test_by_kseq(tree, rows, random, chain, drafts, child, column, token, known, known_row, testing, S):
    """Each draft is accepted with probability min(1, p / (rho q)), rho the best one for p, q and k. If none is, the token is drawn from
    norm(p - c min(q, p / rho)), c = p_acc / beta: that link waits on top of the chain."""
    stopped = testing & False
    status = tl.zeros([S.ROWS], tl.int32)
    first = testing & (drafts.rho == 0)
    if some(first):
        q, status, _, _ = draft_law(tree, rows, chain.b, child, token, known, known_row, first, S)
        stopped = first & (~is_something(q) | ((drafts.row < 0) & (token >= rows.target.V)))
        first &= ~stopped
        p_at = offset_of(rows.target, chain.b, chain.p.row)
        q_at = offset_of(rows.draft, chain.b, q.row)
        rho, beta, p_acc = search_laws(
            rows.target.rows, p_at, rows.target.V, chain.p, rows.draft.rows, q_at, rows.draft.V, q, drafts.k, first,
            rows.target.PROBS, rows.draft.PROBS, S.ROWS, S.WIDTH, rows, chain if rows.BLENDS else None,
        )  # fmt: skip
        unlawful = first & (beta != beta)  # a probability row of q that is no law is found out by its sum
        status |= tl.where(unlawful, INVALID_ROW | INVALID_DRAFT, 0)
        stopped |= unlawful
        first &= ~unlawful
        c = tl.where(beta > 0, p_acc / beta, rho)
        one = tl.full([S.ROWS], 1.0, tl.float32)
        put_link(rows, chain.at + chain.n, Link(q, one, c.to(tl.float32), (1 / rho).to(tl.float32), token * 0 - 1), first)
        drafts = Drafts(drafts.counting, drafts.k, drafts.row, drafts.token, drafts.others, tl.where(first, rho, drafts.rho))
    testing &= ~stopped
    p = first_weight(rows, chain.b, chain.p, chain.at, token, testing)
    q_t, _ = prob(rows.draft, chain.b, get_link(rows, chain.at + chain.n, testing).q, token, testing)
    q_t = draft_prob(q_t)
    status |= tl.where(testing & (drafts.row >= 0) & ~(q_t > 0), INVALID_DRAFT, 0)
    u = coin(random, chain.b, column, DOMAIN_ACCEPT, column, testing)
    return testing & accept_test(p, q_t, u * drafts.rho), stopped, status, drafts


@triton.jit
def descend(tree, rows, rules, random, out, b, links, exists, METHOD: tl.constexpr, S):
    """`links`: where the links of each request begin."""
    BY_RULE: tl.constexpr = rules.rule is not None
    if BY_RULE:
        rule, alpha = rule_here(rules, METHOD == TARGET_ONLY)
        single = tl.where(rule == THRESHOLDS, alpha.first, 1.0)
        acc = tl.where(rule == THRESHOLDS, alpha.second, 1.0)
    else:
        single = None
    zero = b * 0
    node = zero
    depth = zero
    n = zero
    tests = Tests(zero, zero)
    status = tl.where(is_bad_tree(tree, b, exists), INVALID_DRAFT, 0)
    total = tl.full([S.ROWS], 1.0, tl.float64)
    held = exists & False
    p = one_hot(zero - 1)
    known = p
    known_row = zero - 1
    u = total
    seen = total
    if METHOD == KSEQ:
        drafts = no_drafts(zero)
    walking = exists
    arriving = exists
    while some(walking):
        if some(arriving):
            law, holds = target_law(tree, rows, b, node, arriving, METHOD == GREEDY, S)
            p = choose(arriving, law, p)
            held = tl.where(arriving, holds, held)
            n = tl.where(arriving, 0, n)
            total = tl.where(arriving, 1.0, total)
            tests = Tests(tl.where(arriving, 0, tests.at), tl.where(arriving, 0, tests.count))
            if METHOD == TARGET_ONLY:
                u = tl.where(arriving, coin(random, b, node, DOMAIN_ACCEPT, node, arriving), u)
                if BY_RULE:
                    u = tl.where(arriving, u * acc, u)
                seen = tl.where(arriving, 0.0, seen)
            if METHOD == KSEQ:
                drafts = choose_drafts(arriving, no_drafts(zero), drafts)
            if rows.BLENDS:
                own, known, known_row = stand(tree, rows, rule, alpha, b, node, depth, p, links, known, known_row, arriving, S)
                held &= own
            _, hot = standing(rows, p, links, arriving)
            judged = arriving & (hot < 0)
            walking &= ~judged | is_valid(rows.target, p)
            outside, _, _ = next_test(tree, b, node, depth, Tests(zero, zero), zero + OUTSIDE, judged & walking)
            status |= tl.where(outside >= 0, INVALID_DRAFT, 0)
        # Where one token alone can be emitted, it is accepted wherever it was drafted, and q is not asked.
        _, sure = standing(rows, p, links, walking)
        wanted = tl.where(sure >= 0, sure, INSIDE)
        child, column, tests = next_test(tree, b, node, depth, tests, wanted, walking)
        found = child >= 0
        ended = walking & ~found
        token = entry(tree.tokens, b * tree.N + child, walking & found)
        accepted = walking & found & (sure >= 0)
        testing = walking & found & (sure < 0)
        chain = Chain(b, p, links, n)
        if METHOD == KSEQ:
            row = draft_row(tree, b, child, testing)
            counting = walking & (sure < 0) & drafts.counting
            drafts, nothing_to_test = count_drafts(rows, chain, drafts, row, token, found, counting, S)
            begun = counting & ~found & ~nothing_to_test
            status |= tl.where(begun & drafts.others, INVALID_DRAFT, 0)
            tests = Tests(tl.where(begun, 0, tests.at), tl.where(begun, 0, tests.count))
            n += tl.where(ended & ~counting & (sure < 0), 1, 0)
            held &= n == chain.n
            ended &= ~begun
            testing &= ~counting & one_law(drafts, row, token)
        walking &= ~ended
        if METHOD == GREEDY:
            walking &= ~testing
        elif METHOD == TARGET_ONLY:
            taken, stopped, n, seen = test_by_target(rows, chain, seen, u, single, token, testing)
            held &= n == chain.n
            accepted |= taken
            walking &= ~stopped
        elif METHOD == KSEQ:
            taken, stopped, bits, drafts = test_by_kseq(
                tree, rows, random, chain, drafts, child, column, token, known, known_row, testing, S
            )
            status |= bits
            accepted |= taken
            walking &= ~stopped
        else:
            taken, stopped, n, total, held, bits, known, known_row = test_recursively(
                tree, rows, random, chain, total, held, child, column, token, known, known_row, testing, METHOD == RECURSIVE, S
            )
            status |= bits
            accepted |= taken
            walking &= ~stopped
        _, log_p = prob(rows.target, b, p, token, accepted)
        keep(tree, out, b, depth, child, token, log_p, accepted)
        node = tl.where(accepted, child, node)
        depth += tl.where(accepted, 1, 0)
        arriving = accepted
    finish(tree, rows, random, out, Chain(b, p, links, n), held, depth, status, exists, S)

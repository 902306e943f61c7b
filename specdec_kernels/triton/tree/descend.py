# SPDX-License-Identifier: Apache-2.0
"""The walk from the root down, for a block of requests (csrc/ops/verify_tree: descend in walk.h; greedy.h, kseq.h,
target_only.h, recursive.h). In each turn, a request counts or tests one child, or finds that none is left."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.draw import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW, has_mass
from ..core.memory import some
from ..core.residual import Residual, Subtraction, get_subtraction, put_subtraction, subtracting, sum_chunks, weight
from ..core.rows import accept_test, choose, draft_prob, is_something, is_valid, one_hot, prob
from ..kseq_rho import Pairs, kseq_search
from .reduce import draft_of, left_of, reduce
from .tree import INSIDE, OUTSIDE, Tests, choose_tests, is_bad_tree, next_test, test_uniform, token_of
from .walk import Known, Rest, draft_dist, draft_row, emit, finish, target_dist


class Drafts(NamedTuple):
    """The drafts at a node, of which K-SEQ tests those drawn from the same distribution as the first one."""

    counting: Any  # whether they are still being counted
    k: Any  # the number of drafts with the first one's distribution, as far as they are counted
    row: Any  # the row that the first draft was drawn from; -2: not known yet
    token: Any  # the first draft's token
    others: Any  # whether some draft has another distribution
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
    """Return whether a draft was drawn from the same distribution as the first one."""
    return (row == drafts.row) & ((row >= 0) | (token == drafts.token))


@triton.jit
def count_drafts(sides, residual, drafts, row, token, found, counting, S):
    """Count the current draft, or end the count if there is none. Return the drafts, and which requests stop: they have
    no draft to test, or an invalid p."""
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
    """Find rho for nodes whose first draft is to be tested. Return rho, which requests stop for lack of it, and the
    status bits.

    The subtraction that leaves norm(p - c min(q, p / rho)), c = p_acc / beta, is stored after those of the residual. It
    takes effect only if all drafts are rejected."""
    q, status, _ = draft_dist(tree, sides, residual.b, child, token, known, first, S)
    stopped = first & (~is_something(q) | ((drafts.row < 0) & (token >= sides.target.V)))
    first &= ~stopped
    # Triton drops the constants of a tuple that is assigned, so this one is made in the call.
    rho, beta, p_acc = kseq_search(Pairs(sides.target, sides.draft, residual.b, residual.p, q), drafts.k, first, S)
    unlawful = first & (beta != beta)  # only the sum of a row of probabilities shows that q is invalid
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
    """Accept each draft with probability min(1, p / (rho q)), with the best rho for p, q and k. If none is accepted,
    the token is drawn from the residual after the subtraction that find_rho() stored."""
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


KSEQ = tl.constexpr(0)
RECURSIVE_WITHOUT_REPLACEMENT = tl.constexpr(2)
TARGET_ONLY = tl.constexpr(3)
GREEDY = tl.constexpr(4)
TRAVERSAL = tl.constexpr(5)
RACE = tl.constexpr(6)


class Toss(NamedTuple):
    """One uniform for all children of a node."""

    u: Any
    seen: Any  # the sum of the probabilities of the children that were tested


@triton.jit
def test_by_target(sides, residual, rest, toss, token, testing):
    """Accept the child at which the running sum of the children's probabilities exceeds the node's uniform. A later
    child with the same token is skipped."""
    _, removed = weight(sides, residual, token, testing)
    testing &= ~removed
    p, _ = prob(sides.target, residual.b, residual.p, token, testing)
    seen = tl.where(testing, toss.seen + p, toss.seen)
    accepted = testing & (toss.u < seen)
    rejected = testing & ~accepted & (seen == seen)
    one = tl.full(token.shape, 1.0, tl.float32)
    put_subtraction(sides, residual.at + residual.n, subtracting(one_hot(token), one, one, token), rejected)
    rest = Rest(rest.p, rest.n + tl.where(rejected, 1, 0), rest.total, rest.held & ~rejected)
    return accepted, testing & (seen != seen), rest, Toss(toss.u, seen)


@triton.jit
def test_recursively(
    tree, sides, random, residual, rest, child, column, token, known, testing, REPLACES: tl.constexpr, S
):
    """Accept x ~ q with probability min(1, r(x) / q(x)); after a rejection r becomes norm((r - q)+). Without
    replacement q then loses x, and a later child with the same token is skipped."""
    r, removed = weight(sides, residual, token, testing)
    if not REPLACES:
        testing &= ~removed
    r /= rest.total
    stopped = testing & (r != r)
    testing &= r == r
    q, bits, known = draft_dist(tree, sides, residual.b, child, token, known, testing, S)
    share = tl.full([S.ROWS], 1.0, tl.float64)
    taken = token * 0 - 1
    if not REPLACES:
        q, share = left_of(sides, q, residual, testing, S)
        taken = token
    q_t, no_prob = draft_of(sides, residual.b, token, q, share, testing, S)
    bits |= no_prob
    u = test_uniform(tree, random, residual.b, column, testing)
    accepted = testing & accept_test(r, q_t, u)
    rejected = testing & ~accepted
    if some(rejected):
        one = tl.full([S.ROWS], 1.0, tl.float64)
        rest, kept = reduce(sides, residual, rest, q, one, one / share, taken, rejected, S)
        stopped |= rejected & (kept != kept)
        bits |= tl.where(rejected & (kept == 0) & is_something(q), EMPTY_RESIDUAL, 0)
    return accepted, stopped, bits, rest, known


@triton.jit
def test(
    tree, sides, random, residual, rest, toss, drafts, child, column, token, known, testing,
    METHOD: tl.constexpr, S,
):  # fmt: skip
    """Test a child of each node. Return whether it is accepted, whether the walk stops there, the status bits, and the
    new state."""
    REPLACES: tl.constexpr = METHOD != RECURSIVE_WITHOUT_REPLACEMENT
    bits = tl.zeros([S.ROWS], tl.int32)
    taken = testing & False
    stopped = testing
    if METHOD == TARGET_ONLY:
        taken, stopped, rest, toss = test_by_target(sides, residual, rest, toss, token, testing)
    elif METHOD == KSEQ:
        taken, stopped, bits, drafts = test_by_kseq(
            tree, sides, random, residual, drafts, child, column, token, known, testing, S
        )
    elif METHOD != GREEDY:
        taken, stopped, bits, rest, known = test_recursively(
            tree, sides, random, residual, rest, child, column, token, known, testing, REPLACES, S
        )
    return taken, stopped, bits, rest, toss, drafts, known


@triton.jit
def toss_at(tree, random, b, node, toss, arriving):
    u = test_uniform(tree, random, b, node, arriving)
    return Toss(tl.where(arriving, u, toss.u), tl.where(arriving, 0.0, toss.seen))


@triton.jit
def arrive(tree, sides, b, node, depth, rest, walking, arriving, GREEDY: tl.constexpr, S):
    """Begin at nodes with their whole distributions. Return a Rest, which requests go on walking, and the status
    bits."""
    zero = b * 0
    law, holds = target_dist(tree, sides, b, node, arriving, GREEDY, S)
    p = choose(arriving, law, rest.p)
    held = tl.where(arriving, holds, rest.held)
    judged = arriving & (p.hot < 0)
    walking &= ~judged | is_valid(sides.target, p)
    outside, _, _ = next_test(tree, b, node, depth, Tests(zero, zero), zero + OUTSIDE, judged & walking)
    bits = tl.where(outside >= 0, INVALID_DRAFT, 0)
    rest = Rest(p, tl.where(arriving, 0, rest.n), tl.where(arriving, 1.0, rest.total), held)
    return rest, walking, bits


@triton.jit
def count_or_test(tree, sides, residual, rest, drafts, tests, child, token, found, walking, testing, sure, S):
    """Count the drafts of K-SEQ before they are tested. Once all are rejected, let the subtraction of find_rho() take
    effect. Return the drafts, the Rest, the tests, which requests have no more tests, which test their child now, and
    the status bits."""
    ended = walking & ~found
    row = draft_row(tree, residual.b, child, testing)
    counting = walking & (sure < 0) & drafts.counting
    drafts, nothing_to_test = count_drafts(sides, residual, drafts, row, token, found, counting, S)
    begun = counting & ~found & ~nothing_to_test
    bits = tl.where(begun & drafts.others, INVALID_DRAFT, 0)
    zero = residual.b * 0
    tests = choose_tests(begun, Tests(zero, zero), tests)
    rejected = ended & ~counting & (sure < 0)
    rest = Rest(rest.p, rest.n + tl.where(rejected, 1, 0), rest.total, rest.held & ~rejected)
    return drafts, rest, tests, ended & ~begun, testing & ~counting & one_law(drafts, row, token), bits


@triton.jit
def descend(tree, sides, random, out, b, links, exists, METHOD: tl.constexpr, S):
    """Verify trees from the root down. links: where the subtractions of each request begin."""
    zero = b * 0
    node = zero
    depth = zero
    tests = Tests(zero, zero)
    status = tl.where(is_bad_tree(tree, b, exists), INVALID_DRAFT, 0)
    one = tl.full([S.ROWS], 1.0, tl.float64)
    nothing = one_hot(zero - 1)
    rest = Rest(nothing, zero, one, exists & False)
    known = Known(nothing, zero - 1)
    toss = Toss(one, one)
    drafts = no_drafts(zero)
    walking = exists
    arriving = exists
    while some(walking):
        if some(arriving):
            rest, walking, bits = arrive(tree, sides, b, node, depth, rest, walking, arriving, METHOD == GREEDY, S)
            status |= bits
            tests = choose_tests(arriving, Tests(zero, zero), tests)
            if METHOD == TARGET_ONLY:
                toss = toss_at(tree, random, b, node, toss, arriving)
            if METHOD == KSEQ:
                drafts = choose_drafts(arriving, no_drafts(zero), drafts)
        # If only one token can be emitted, a child with that token is accepted, and q is not read.
        sure = rest.p.hot
        wanted = tl.where(sure >= 0, sure, INSIDE)
        child, column, tests = next_test(tree, b, node, depth, tests, wanted, walking)
        found = child >= 0
        ended = walking & ~found
        token = token_of(tree, b, child, walking & found)
        accepted = walking & found & (sure >= 0)
        testing = walking & found & (sure < 0)
        residual = Residual(b, rest.p, links, rest.n)
        if METHOD == KSEQ:
            drafts, rest, tests, ended, testing, bits = count_or_test(
                tree, sides, residual, rest, drafts, tests, child, token, found, walking, testing, sure, S
            )
            status |= bits
        walking &= ~ended
        taken, stopped, bits, rest, toss, drafts, known = test(
            tree, sides, random, residual, rest, toss, drafts, child, column, token, known, testing, METHOD, S
        )
        status |= bits
        accepted |= taken
        walking &= ~stopped
        _, log_p = prob(sides.target, b, rest.p, token, accepted)
        emit(tree, out, b, depth, child, token, log_p, accepted)
        node = tl.where(accepted, child, node)
        depth += tl.where(accepted, 1, 0)
        arriving = accepted
    finish(tree, sides, random, out, Residual(b, rest.p, links, rest.n), rest.held, depth, status, exists, S)

# SPDX-License-Identifier: Apache-2.0
"""Traversal verification, from the leaves to the root, for a block of requests (csrc/ops/verify_tree/traversal.h has the rule): in turn
each request enters a child, takes one away, or looks at the next one."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.mixture import standing
from ..core.residual import chain_weight, draft_of, left_of, reduce
from ..chain.draft_test import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW
from ..core.links import Chain
from ..core.philox import DOMAIN_ACCEPT
from ..rules.rule import EXACT, LOSSY
from ..core.side import choose, is_something, is_valid, one_hot, packed, prob, unpacked
from .node_dist import rule_here, stand
from .tree import INSIDE, OUTSIDE, Tests, coin, entry, is_bad_tree, next_test, some
from .walk import draft_law, finish, keep, target_law

FRAME_INTS = tl.constexpr(7)
FRAME_REALS = tl.constexpr(11)


class Frame(NamedTuple):
    """A node on the path from the root to the leaf under test."""

    node: Any
    tests: Any  # the children that have not been looked at
    p: Any  # the law of its children
    n: Any  # links that its children left, on the request's stack
    bottom: Any  # where they begin
    total: Any  # of p as they left it
    w: Any
    q: Any  # what was left of the law it was drawn from; nothing: nothing to take away
    s: Any  # 1 / the share that is


@triton.jit
def choose_frame(mask, a, b):
    tests = Tests(tl.where(mask, a.tests.at, b.tests.at), tl.where(mask, a.tests.count, b.tests.count))
    return Frame(
        tl.where(mask, a.node, b.node), tests, choose(mask, a.p, b.p), tl.where(mask, a.n, b.n), tl.where(mask, a.bottom, b.bottom),
        tl.where(mask, a.total, b.total), tl.where(mask, a.w, b.w), choose(mask, a.q, b.q), tl.where(mask, a.s, b.s),
    )  # fmt: skip


@triton.jit
def put_frame(ints, reals, at, frame, mask):
    """Between two barriers: every thread may read it next."""
    tl.debug_barrier()
    ints += at * FRAME_INTS
    tl.store(ints, frame.node, mask=mask)
    tl.store(ints + 1, frame.tests.at, mask=mask)
    tl.store(ints + 2, frame.tests.count, mask=mask)
    tl.store(ints + 3, frame.n, mask=mask)
    tl.store(ints + 4, frame.bottom, mask=mask)
    reals += at * FRAME_REALS
    tl.store(reals, frame.total, mask=mask)
    tl.store(reals + 1, frame.w, mask=mask)
    tl.store(reals + 2, frame.s, mask=mask)
    put_dist(ints + 5, reals + 3, frame.p, mask)
    put_dist(ints + 6, reals + 7, frame.q, mask)
    tl.debug_barrier()


@triton.jit
def put_dist(ints, reals, d, mask):
    tl.store(ints, packed(d), mask=mask)
    tl.store(reals, d.scale.to(tl.float64), mask=mask)
    tl.store(reals + 1, d.cutoff.to(tl.float64), mask=mask)
    tl.store(reals + 2, d.log_norm.to(tl.float64), mask=mask)
    tl.store(reals + 3, d.most.to(tl.float64), mask=mask)


@triton.jit
def get_dist(ints, reals, mask):
    scale = tl.load(reals, mask=mask, other=1.0).to(tl.float32)
    cutoff = tl.load(reals + 1, mask=mask, other=1.0).to(tl.float32)
    log_norm = tl.load(reals + 2, mask=mask, other=1.0).to(tl.float32)
    most = tl.load(reals + 3, mask=mask, other=1.0).to(tl.float32)
    return unpacked(tl.load(ints, mask=mask, other=0), scale, cutoff, log_norm, most)


@triton.jit
def get_frame(ints, reals, at, mask):
    ints += at * FRAME_INTS
    reals += at * FRAME_REALS
    tests = Tests(tl.load(ints + 1, mask=mask, other=0), tl.load(ints + 2, mask=mask, other=0))
    p = get_dist(ints + 5, reals + 3, mask)
    q = get_dist(ints + 6, reals + 7, mask)
    n = tl.load(ints + 3, mask=mask, other=0)
    bottom = tl.load(ints + 4, mask=mask, other=0)
    total = tl.load(reals, mask=mask, other=1.0)
    w = tl.load(reals + 1, mask=mask, other=1.0)
    s = tl.load(reals + 2, mask=mask, other=1.0)
    return Frame(tl.load(ints, mask=mask, other=0), tests, p, n, bottom, total, w, q, s)


@triton.jit
def traverse(tree, rows, rules, random, out, b, links, ints, reals, exists, S):
    """`links`: where the links of each request begin. ints [B, F, FRAME_INTS] and reals [B, F, FRAME_REALS]
    hold frames, F = min(D, N - 1) + 1: the nodes of a path."""
    if rows.BLENDS:
        rule, alpha = rule_here(rules, False)
    zero = b * 0
    one = tl.full([S.ROWS], 1.0, tl.float64)
    nothing = one_hot(zero - 1)
    top = Frame(zero, Tests(zero, zero), nothing, zero, links, one, one, nothing, one)
    child = top  # the node, w, q and s of a child of the top; the root at first
    depth = zero
    opened = exists  # there may be children of the top to look at
    greedy = exists & False  # a greedy root makes the request greedy
    held = greedy
    status = tl.where(is_bad_tree(tree, b, exists), INVALID_DRAFT, 0)
    known = nothing
    known_row = zero - 1
    frames = b * (tl.minimum(tree.D, tree.N - 1) + 1)
    entering = exists
    removing = greedy
    running = exists
    while some(running):
        if some(entering):
            below = entering & (child.node > 0)
            put_frame(ints, reals, frames + depth, top, below)
            depth += tl.where(below, 1, 0)
            p, holds = target_law(tree, rows, b, child.node, entering, False, S)
            bottom = top.bottom + tl.where(below, top.n + (1 if rows.BLENDS else 0), 0)
            top = choose_frame(entering, Frame(child.node, Tests(zero, zero), p, zero, bottom, one, child.w, child.q, child.s), top)
            held = tl.where(entering, holds, held)
            opened |= entering
            root = entering & (child.node == 0) & (p.hot >= 0)
            if rows.BLENDS:
                own, known, known_row = stand(tree, rows, rule, alpha, b, top.node, depth, p, bottom, known, known_row, entering, S)
                held &= own
                if (rule != EXACT) & (rule != LOSSY):
                    root = root & False
            greedy |= root
            valid = is_valid(rows.target, top.p)
            flagged = entering & (~greedy | (valid & (top.p.hot < 0)))
            outside, _, _ = next_test(tree, b, top.node, depth, Tests(zero, zero), zero + OUTSIDE, flagged)
            status |= tl.where(outside >= 0, INVALID_DRAFT, 0)
            running &= ~(entering & greedy & (top.p.hot < 0))
        if some(removing):
            token = entry(tree.tokens, b * tree.N + child.node, removing)
            chain = Chain(b, top.p, top.bottom, top.n)
            n, total, kept, holds = reduce(rows, chain, top.total, child.q, top.w, child.s, token, removing, S)
            drawn = removing & is_something(child.q)
            opened &= ~(drawn & (kept != kept))
            # Rounding alone leaves nothing: the root's last law stays.
            status |= tl.where(drawn & (kept == 0) & (depth == 0), EMPTY_RESIDUAL, 0)
            rest = kept + 1 - top.w
            w = tl.where(drawn & (kept == kept), tl.where(rest > 0, kept / rest, 0.0), top.w)
            top = Frame(top.node, top.tests, top.p, n, top.bottom, total, w, top.q, top.s)
            held = tl.where(removing, holds, held)

        looking = running & opened
        wanted = tl.where(greedy, top.p.hot, INSIDE)
        node, _, tests = next_test(tree, b, top.node, depth, top.tests, wanted, looking)
        top = Frame(top.node, tests, top.p, top.n, top.bottom, top.total, top.w, top.q, top.s)
        opened &= node >= 0
        running &= ~(greedy & (node < 0))
        looking &= node >= 0
        token = entry(tree.tokens, b * tree.N + node, looking)
        following = looking & greedy
        keep(tree, out, b, depth, node, token, tl.zeros([S.ROWS], tl.float64), following)
        testing = looking & ~greedy
        valid = is_valid(rows.target, top.p)
        status |= tl.where(testing & ~valid, INVALID_ROW, 0)
        opened &= ~testing | valid
        testing &= valid
        chain = Chain(b, top.p, top.bottom, top.n)
        r, gone = chain_weight(rows, chain, token, testing)
        r /= top.total
        testing &= ~gone
        opened &= ~(testing & (r != r))
        testing &= r == r
        q, bits, known, known_row = draft_law(tree, rows, b, node, token, known, known_row, testing, S)
        q, share = left_of(rows, q, chain, testing, S)
        q_t, no_prob = draft_of(rows, b, token, q, share, testing, S)
        status |= bits | no_prob
        w = tl.where((q_t > 0) & (r > 0), top.w * r / q_t, 0.0)
        next_child = Frame(node, top.tests, top.p, top.n, top.bottom, top.total, tl.minimum(w, 1.0), q, 1 / share)
        child = choose_frame(looking, next_child, child)
        entering = following | (testing & (w > 0))
        removing = testing & ~(w > 0)

        closing = running & ~opened
        u = coin(random, b, top.node, DOMAIN_ACCEPT, top.node, closing & (depth > 0))
        accepted = closing & ((depth == 0) | (u < top.w))
        running &= ~accepted
        leaving = closing & ~accepted
        if some(leaving):
            child = choose_frame(leaving, top, child)
            depth -= tl.where(leaving, 1, 0)
            top = choose_frame(leaving, get_frame(ints, reals, frames + depth, leaving), top)
            opened |= leaving
            held &= ~leaving
            removing |= leaving

    for i in range(0, tl.max(depth, 0)):
        on = exists & ~greedy & (i < depth)
        at = frames + i
        p = get_dist(ints + at * FRAME_INTS + 5, reals + at * FRAME_REALS + 3, on)
        below = tl.load(ints + (at + 1) * FRAME_INTS, mask=on & (i + 1 < depth), other=0)
        node = tl.where(i + 1 < depth, below, top.node)
        token = entry(tree.tokens, b * tree.N + node, on)
        _, log_p = prob(rows.target, b, p, token, on)
        keep(tree, out, b, zero + i, node, token, log_p, on)
    finish(tree, rows, random, out, Chain(b, top.p, top.bottom, top.n), held, depth, status, exists, S)

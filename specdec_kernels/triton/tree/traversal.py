# SPDX-License-Identifier: Apache-2.0
"""Traversal verification, from the leaves to the root, for a block of requests (csrc/ops/verify_tree/traversal.h has
the rule and its weights w). In a turn, a request may first enter or subtract a child. Then it tests the next child of
the node where it is or, if there is none, accepts or leaves that node."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.draw import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW
from ..core.memory import get_value, put_value, some
from ..core.residual import Residual, weight
from ..core.row import Dist, RowStats
from ..core.rows import choose, is_something, is_valid, one_hot, prob
from .reduce import draft_of, left_of, reduce
from .tree import INSIDE, OUTSIDE, Tests, choose_tests, is_bad_tree, look_up, next_test, test_uniform, token_of
from .walk import Known, Rest, draft_dist, emit, finish, target_dist

FRAME_INTS = tl.constexpr(9)
FRAME_REALS = tl.constexpr(11)


class Frames(NamedTuple):
    """Memory for the frames of a path of up to F = min(D, N - 1) + 1 nodes."""

    ints: Any  # [B, F, FRAME_INTS]
    reals: Any  # [B, F, FRAME_REALS]


class Frame(NamedTuple):
    """A node on the path from the root to the leaf under test."""

    node: Any
    tests: Any  # the children that have not been tested yet
    p: Any  # the target's distribution of its children
    n: Any  # the number of subtractions for its rejected children, on the request's stack
    bottom: Any  # the index of the first of these on the stack
    total: Any  # the mass of p after them
    w: Any  # the probability that the node is accepted once no child is left to test
    q: Any  # the distribution that the node was drawn from, without its removed siblings; none: nothing to subtract
    s: Any  # 1 / the share of that distribution's row that was left


class Child(NamedTuple):
    """A child, with the initial values of its frame."""

    node: Any
    w: Any
    q: Any
    s: Any


class Walk(NamedTuple):
    top: Any  # the Frame of the last node on the path
    child: Any  # the child of the top that is tested; at first the root
    depth: Any
    opened: Any  # whether the top may have more children to test
    greedy: Any  # a greedy root makes the request greedy
    held: Any  # whether room.masses holds the chunk sums of the top's residual
    known: Any
    status: Any


@triton.jit
def choose_frame(mask, a, b):
    p, q = choose(mask, a.p, b.p), choose(mask, a.q, b.q)
    n, bottom, total = tl.where(mask, a.n, b.n), tl.where(mask, a.bottom, b.bottom), tl.where(mask, a.total, b.total)
    w, s = tl.where(mask, a.w, b.w), tl.where(mask, a.s, b.s)
    return Frame(tl.where(mask, a.node, b.node), choose_tests(mask, a.tests, b.tests), p, n, bottom, total, w, q, s)


@triton.jit
def choose_child(mask, a, b):
    return Child(
        tl.where(mask, a.node, b.node), tl.where(mask, a.w, b.w), choose(mask, a.q, b.q), tl.where(mask, a.s, b.s)
    )


@triton.jit
def put_dist(ints, reals, d, mask):
    put_value(ints, d.row, mask)
    put_value(ints + 1, d.hot, mask)
    put_value(reals, d.stats.scale.to(tl.float64), mask)
    put_value(reals + 1, d.stats.cutoff.to(tl.float64), mask)
    put_value(reals + 2, d.stats.log_norm.to(tl.float64), mask)
    put_value(reals + 3, d.stats.max.to(tl.float64), mask)


@triton.jit
def get_dist(ints, reals, mask):
    scale = get_value(reals, mask, 1.0).to(tl.float32)
    cutoff = get_value(reals + 1, mask, 1.0).to(tl.float32)
    log_norm = get_value(reals + 2, mask, 1.0).to(tl.float32)
    most = get_value(reals + 3, mask, 1.0).to(tl.float32)
    stats = RowStats(scale, cutoff, log_norm, most)
    return Dist(get_value(ints, mask, -1), get_value(ints + 1, mask, -1), stats)


@triton.jit
def put_frame(frames, at, frame, mask):
    """Store a frame, between two barriers, since any thread may read it next."""
    tl.debug_barrier()
    ints = frames.ints + at * FRAME_INTS
    put_value(ints, frame.node, mask)
    put_value(ints + 1, frame.tests.at, mask)
    put_value(ints + 2, frame.tests.count, mask)
    put_value(ints + 3, frame.n, mask)
    put_value(ints + 4, frame.bottom, mask)
    reals = frames.reals + at * FRAME_REALS
    put_value(reals, frame.total, mask)
    put_value(reals + 1, frame.w, mask)
    put_value(reals + 2, frame.s, mask)
    put_dist(ints + 5, reals + 3, frame.p, mask)
    put_dist(ints + 7, reals + 7, frame.q, mask)
    tl.debug_barrier()


@triton.jit
def get_frame(frames, at, mask):
    ints = frames.ints + at * FRAME_INTS
    reals = frames.reals + at * FRAME_REALS
    tests = Tests(get_value(ints + 1, mask, 0), get_value(ints + 2, mask, 0))
    p = get_dist(ints + 5, reals + 3, mask)
    q = get_dist(ints + 7, reals + 7, mask)
    n = get_value(ints + 3, mask, 0)
    bottom = get_value(ints + 4, mask, 0)
    total = get_value(reals, mask, 1.0)
    w = get_value(reals + 1, mask, 1.0)
    s = get_value(reals + 2, mask, 1.0)
    return Frame(get_value(ints, mask, 0), tests, p, n, bottom, total, w, q, s)


@triton.jit
def enter(tree, sides, b, frames, at, walk, entering, S):
    """Make the child the top. Return the walk, and which requests go on. A greedy path ends at a row that is not
    greedy."""
    zero = b * 0
    top, child = walk.top, walk.child
    below = entering & (child.node > 0)
    put_frame(frames, at + walk.depth, top, below)
    depth = walk.depth + tl.where(below, 1, 0)
    p, holds = target_dist(tree, sides, b, child.node, entering, False, S)
    bottom = top.bottom + tl.where(below, top.n, 0)
    one = tl.full([S.ROWS], 1.0, tl.float64)
    new = Frame(child.node, Tests(zero, zero), p, zero, bottom, one, child.w, child.q, child.s)
    top = choose_frame(entering, new, top)
    held = tl.where(entering, holds, walk.held)
    root = entering & (child.node == 0) & (p.hot >= 0)
    greedy = walk.greedy | root
    flagged = entering & (~greedy | (is_valid(sides.target, top.p) & (top.p.hot < 0)))
    outside, _, _ = next_test(tree, b, top.node, depth, Tests(zero, zero), zero + OUTSIDE, flagged)
    status = walk.status | tl.where(outside >= 0, INVALID_DRAFT, 0)
    walk = Walk(top, child, depth, walk.opened | entering, greedy, held, walk.known, status)
    return walk, ~(entering & greedy & (top.p.hot < 0))


@triton.jit
def remove(tree, sides, b, walk, removing, S):
    """Subtract the child's distribution from that of the top."""
    top, child = walk.top, walk.child
    token = token_of(tree, b, child.node, removing)
    residual = Residual(b, top.p, top.bottom, top.n)
    rest = Rest(top.p, top.n, top.total, walk.held)
    rest, kept = reduce(sides, residual, rest, child.q, top.w, child.s, token, removing, S)
    drawn = removing & is_something(child.q)
    opened = walk.opened & ~(drawn & (kept != kept))
    # Only rounding can leave nothing. The root then keeps its last distribution.
    status = walk.status | tl.where(drawn & (kept == 0) & (walk.depth == 0), EMPTY_RESIDUAL, 0)
    left = kept + 1 - top.w
    w = tl.where(drawn & (kept == kept), tl.where(left > 0, kept / left, 0.0), top.w)
    top = Frame(top.node, top.tests, top.p, rest.n, top.bottom, rest.total, w, top.q, top.s)
    return Walk(top, child, walk.depth, opened, walk.greedy, rest.held, walk.known, status)


@triton.jit
def look(tree, sides, out, b, walk, looking, S):
    """Test the next child of the top. Return the walk, whether the child is entered, whether it is subtracted at once,
    and which requests go on. A greedy path ends if its token was not drafted."""
    top, opened, status = walk.top, walk.opened, walk.status
    wanted = tl.where(walk.greedy, top.p.hot, INSIDE)
    node, _, tests = next_test(tree, b, top.node, walk.depth, top.tests, wanted, looking)
    top = Frame(top.node, tests, top.p, top.n, top.bottom, top.total, top.w, top.q, top.s)
    opened &= node >= 0
    goes_on = ~(walk.greedy & (node < 0))
    looking &= node >= 0
    token = token_of(tree, b, node, looking)
    following = looking & walk.greedy
    emit(tree, out, b, walk.depth, node, token, tl.zeros([S.ROWS], tl.float64), following)
    testing = looking & ~walk.greedy
    valid = is_valid(sides.target, top.p)
    status |= tl.where(testing & ~valid, INVALID_ROW, 0)
    opened &= ~testing | valid
    testing &= valid
    residual = Residual(b, top.p, top.bottom, top.n)
    r, removed = weight(sides, residual, token, testing)
    r /= top.total
    testing &= ~removed
    opened &= ~(testing & (r != r))
    testing &= r == r
    q, bits, known = draft_dist(tree, sides, b, node, token, walk.known, testing, S)
    q, share = left_of(sides, q, residual, testing, S)
    q_t, no_prob = draft_of(sides, b, token, q, share, testing, S)
    w = tl.where((q_t > 0) & (r > 0), top.w * r / q_t, 0.0)
    child = choose_child(looking, Child(node, tl.minimum(w, 1.0), q, 1 / share), walk.child)
    walk = Walk(top, child, walk.depth, opened, walk.greedy, walk.held, known, status | bits | no_prob)
    return walk, following | (testing & (w > 0)), testing & ~(w > 0), goes_on


@triton.jit
def leave(frames, at, walk, leaving):
    """Go back from the rejected top to its parent."""
    left = Child(walk.top.node, walk.top.w, walk.top.q, walk.top.s)
    child = choose_child(leaving, left, walk.child)
    depth = walk.depth - tl.where(leaving, 1, 0)
    top = choose_frame(leaving, get_frame(frames, at + depth, leaving), walk.top)
    held = walk.held & ~leaving
    return Walk(top, child, depth, walk.opened | leaving, walk.greedy, held, walk.known, walk.status)


@triton.jit
def emit_path(tree, sides, out, b, frames, first, walk, exists):
    for i in range(0, tl.max(walk.depth, 0)):
        on = exists & ~walk.greedy & (i < walk.depth)
        at = first + i
        p = get_dist(frames.ints + at * FRAME_INTS + 5, frames.reals + at * FRAME_REALS + 3, on)
        below = look_up(frames.ints, (at + 1) * FRAME_INTS, on & (i + 1 < walk.depth))
        node = tl.where(i + 1 < walk.depth, below, walk.top.node)
        token = token_of(tree, b, node, on)
        _, log_p = prob(sides.target, b, p, token, on)
        emit(tree, out, b, b * 0 + i, node, token, log_p, on)


@triton.jit
def traverse(tree, sides, random, out, b, links, frames, exists, S):
    """Verify trees from the leaves up. links: where the subtractions of each request begin."""
    zero = b * 0
    one = tl.full([S.ROWS], 1.0, tl.float64)
    nothing = one_hot(zero - 1)
    root = Frame(zero, Tests(zero, zero), nothing, zero, links, one, one, nothing, one)
    status = tl.where(is_bad_tree(tree, b, exists), INVALID_DRAFT, 0)
    nobody = exists & False
    walk = Walk(root, Child(zero, one, nothing, one), zero, exists, nobody, nobody, Known(nothing, zero - 1), status)
    first = b * (tl.minimum(tree.D, tree.N - 1) + 1)
    entering = exists
    removing = nobody
    running = exists
    while some(running):
        if some(entering):
            walk, goes_on = enter(tree, sides, b, frames, first, walk, entering, S)
            running &= goes_on
        if some(removing):
            walk = remove(tree, sides, b, walk, removing, S)
        walk, entering, removing, goes_on = look(tree, sides, out, b, walk, running & walk.opened, S)
        running &= goes_on
        closing = running & ~walk.opened
        u = test_uniform(tree, random, b, walk.top.node, closing & (walk.depth > 0))
        accepted = closing & ((walk.depth == 0) | (u < walk.top.w))
        running &= ~accepted
        leaving = closing & ~accepted
        if some(leaving):
            walk = leave(frames, first, walk, leaving)
            removing |= leaving
    emit_path(tree, sides, out, b, frames, first, walk, exists)
    top = walk.top
    residual = Residual(b, top.p, top.bottom, top.n)
    finish(tree, sides, random, out, residual, walk.held, walk.depth, walk.status, exists, S)

# SPDX-License-Identifier: Apache-2.0
"""The parts that the walks of a tree share: the distributions at nodes, emitted tokens, and the final draw
(csrc/ops/verify_tree/{walk,node_dist}.h). The walk by the race is here too, since it needs only these parts."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.draw import (
    DOMAIN_FINAL,
    EMPTY_RESIDUAL,
    INVALID_DRAFT,
    INVALID_ROW,
    aim,
    has_mass,
    hit,
    total_mass,
    uniform_of,
)
from ..core.memory import put_value, some
from ..core.race import noise_at, winner
from ..core.residual import Residual, chunk, sum_chunks
from ..core.row import LOG2E, chunks_of, scaled
from ..core.rows import choose, is_valid, one_hot, prob
from ..core.views import seen
from ..row_stats import dist
from .tree import OUTSIDE, Tests, is_bad_tree, look_up, next_test, parent_of


class Out(NamedTuple):
    tokens: Any  # [B, D+1]
    num_accepted: Any  # [B]
    logprobs: Any  # [B, D+1]
    status: Any  # [B]
    path: Any  # [B, D+1]


class Known(NamedTuple):
    """The distribution of the draft's row that was read last."""

    dist: Any
    row: Any  # its index with views


class Rest(NamedTuple):
    """A node's distribution after the subtractions for its rejected children."""

    p: Any  # before the subtractions
    n: Any  # number of subtractions
    total: Any  # the mass after them
    held: Any  # whether room.masses holds the chunk sums after them


@triton.jit
def target_dist(tree, sides, b, node, on, GREEDY: tl.constexpr, S):
    """Return the target's distributions of the nodes' children, and for which requests room.masses holds the chunk
    sums."""
    row = node
    if tree.tables.target_row is not None:
        row = look_up(tree.tables.target_row, b * tree.N + node, on)
    there = on & (row >= 0) & (row < tree.target_count)
    p = dist(sides.target, b, seen(sides.target.views, row, node), b * tree.target_count + row, there, GREEDY, S)
    held = on & False
    if sides.target.stats is None and not sides.target.PROBS and not GREEDY:
        held = on & (p.hot < 0) & is_valid(sides.target, p)
        chunks = chunks_of(sides.target)
        for begin in range(0, chunks, S.CHUNKS):
            c = begin + tl.arange(0, S.CHUNKS)[None, :]
            at = (b * chunks)[:, None] + c
            inside = held[:, None] & (c < chunks)
            m = tl.load(sides.target.scratch.maxes + at, mask=inside, other=0.0)
            s = tl.load(sides.target.scratch.sums + at, mask=inside, other=0.0)
            log_share = scaled(m, p.stats.max[:, None], (p.stats.scale * LOG2E)[:, None])
            share = s * tl.exp2(log_share - (p.stats.log_norm * LOG2E)[:, None])
            tl.store(sides.room.masses + at, tl.where(s > 0, share, 0.0), mask=inside)
        tl.debug_barrier()
    return p, held


@triton.jit
def draft_row(tree, b, child, on):
    """Return the index of the row that each child was drawn from; -1: one-hot."""
    if tree.tables.draft_row is None:
        return parent_of(tree, b, child, on)
    else:
        return tl.maximum(look_up(tree.tables.draft_row, b * tree.N + child, on), -1)


@triton.jit
def draft_dist(tree, sides, b, child, token, known, on, S):
    """Return the distribution q that each child was drawn from, the status bits, and the distribution that was read
    last. An invalid row makes its draft invalid too."""
    q = one_hot(token)
    bits = tl.zeros([S.ROWS], tl.int32)
    if sides.draft.data is not None:
        row = draft_row(tree, b, child, on)
        drawn = on & (row >= 0)
        parent = parent_of(tree, b, child, drawn)
        as_seen = seen(sides.draft.views, row, parent)
        stored = as_seen
        if tree.tables.copied:
            as_seen = row | (parent << 32)
            stored = child
        unknown = drawn & (as_seen != known.row)
        if some(unknown):
            there = unknown & (row < tree.draft_count)
            new = dist(sides.draft, b, stored, b * tree.draft_count + row, there, False, S)
            known = Known(choose(unknown, new, known.dist), tl.where(unknown, as_seen, known.row))
        valid = is_valid(sides.draft, known.dist)
        bits = tl.where(drawn & ~valid, INVALID_ROW | INVALID_DRAFT, 0)
        nothing = one_hot(token * 0 - 1)
        q = choose(drawn, choose(valid, known.dist, nothing), q)
    return q, bits, known


@triton.jit
def emit(tree, out, b, depth, child, token, log_p, on):
    at = b * (tree.D + 1) + depth
    put_value(out.tokens + at, token, on)
    put_value(out.logprobs + at, log_p.to(tl.float32), on)
    put_value(out.path + at + 1, child.to(tl.int32), on)


@triton.jit
def end_path(tree, out, b, depth, token, log_p, status, exists):
    """Write the final token, the padding after it, num_accepted, the status, and the root of the path."""
    first = b * (tree.D + 1)
    put_value(out.num_accepted + b, depth.to(tl.int32), exists)
    put_value(out.status + b, status, exists)
    put_value(out.path + first, tl.zeros(b.shape, tl.int32), exists)
    for begin in range(0, tree.D + 1, tree.TILE):
        j = begin + tl.arange(0, tree.TILE)[None, :]
        last = j == depth[:, None]
        here = exists[:, None] & (j >= depth[:, None]) & (j <= tree.D)
        column = first[:, None] + j
        tl.store(out.tokens + column, tl.where(last, token[:, None], -1), mask=here)
        tl.store(out.logprobs + column, tl.where(last, log_p[:, None], 0.0).to(tl.float32), mask=here)
        tl.store(out.path + column, tl.full(column.shape, -1, tl.int32), mask=here & ~last)


@triton.jit
def finish(tree, sides, random, out, residual, held, depth, status, exists, S):
    """Draw and write the final token, from the residual or, if that has no mass, from p."""
    b = residual.b
    p = residual.p
    sure = exists & (p.hot >= 0)
    pending = exists & ~sure & (p.row >= 0)
    found = exists & False
    empty = found
    n = residual.n
    total = tl.zeros([S.ROWS], tl.float64)
    chunks = chunks_of(sides.target)
    at = b * chunks
    # Loop invariants are not hoisted: they would take registers, which then spill, and there are only two turns.
    for _ in tl.range(0, 2, disable_licm=True):
        summing = pending & ~held
        if some(summing):
            sum_chunks(sides, Residual(b, p, residual.at, n), summing, S)
        mass = total_mass(sides.room.masses, at, chunks, pending, S)
        here = pending & is_valid(sides.target, p) & has_mass(mass)
        total = tl.where(here, mass, total)
        found |= here
        pending &= ~here & (n > 0)
        empty |= pending
        n = tl.where(found, n, 0)
    lost = exists & ~sure & ~found
    seen = lost & (p.row >= 0)
    u = uniform_of(random, b, tree.columns - 1, tree.columns, DOMAIN_FINAL, b * 0, exists)
    aimed = aim(sides.room.masses, at, sides.target.scratch.maxes, at, chunks, u * total, found, seen, S)
    z, w = chunk(sides, b, p, residual.at, n, aimed.chunk, found | seen, S)
    token = tl.where(sure, p.hot, hit(aimed, z, w, found, seen, S))
    _, log_p = prob(sides.target, b, p, token, found | sure)
    log_p = tl.where(lost, float("nan"), log_p)
    status |= tl.where(found & empty, EMPTY_RESIDUAL, 0) | tl.where(lost, INVALID_ROW, 0)
    end_path(tree, out, b, depth, token, log_p, status, exists)


@triton.jit
def descend_by_race(tree, sides, random, out, b, exists, S):
    """Verify trees by the race (csrc/ops/verify_tree/race.h): from each node, go to the child with the winner's
    token."""
    zero = b * 0
    node = zero
    depth = zero
    last = zero
    last_log_p = zero.to(tl.float64)
    status = tl.where(is_bad_tree(tree, b, exists), INVALID_DRAFT, 0)
    walking = exists
    while some(walking):
        p, _ = target_dist(tree, sides, b, node, walking, False, S)
        noise = noise_at(random, b, depth, b * tree.N + node, walking)
        token, log_p, lost = winner(sides.target, b, p, noise, walking, S)
        outside, _, _ = next_test(
            tree, b, node, depth, Tests(zero, zero), zero + OUTSIDE, walking & ~lost & (p.hot < 0)
        )
        status |= tl.where(lost, INVALID_ROW, 0) | tl.where(outside >= 0, INVALID_DRAFT, 0)
        child, _, _ = next_test(tree, b, node, depth, Tests(zero, zero), token, walking & ~lost)
        last = tl.where(walking, token, last)
        last_log_p = tl.where(walking, log_p, last_log_p)
        walking &= child >= 0
        emit(tree, out, b, depth, child, token, log_p, walking)
        node = tl.where(walking, child, node)
        depth += tl.where(walking, 1, 0)
    end_path(tree, out, b, depth, last, last_log_p, status, exists)

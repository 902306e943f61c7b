# SPDX-License-Identifier: Apache-2.0
"""The walk down a tree: the laws it meets, what it emits, and the final draw (csrc/ops/verify_tree/walk.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.mixture import put_p, standing
from ..core.residual import chain_chunk, chain_sum
from ..core.final_token import has_mass, pick_chunk, pick_lane, total_mass
from ..chain.final import largest_of
from ..chain.draft_test import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW
from ..core.row import CHUNK, LOG2E, first_chunk_with, first_lane_with, scaled
from ..core.links import Chain
from ..core.philox import DOMAIN_FINAL
from ..core.side import choose, dist, is_valid, one_hot, prob
from .tree import coin, entry, some


class Out(NamedTuple):
    tokens: Any  # [B, D+1]
    num_accepted: Any  # [B]
    logprobs: Any  # [B, D+1]
    status: Any  # [B]
    path: Any  # [B, D+1]


@triton.jit
def target_law(tree, rows, b, node, on, GREEDY: tl.constexpr, S):
    """The laws of the children of nodes; and where rows.masses holds their chunks."""
    row = node
    if tree.target_row is not None:
        row = entry(tree.target_row, b * tree.N + node, on)
    p = dist(rows.target, b, row, on, GREEDY, S)
    held = on & False
    if rows.target.stats is None and not rows.target.PROBS and not GREEDY:
        held = on & (p.hot < 0) & is_valid(rows.target, p)
        for begin in range(0, rows.target.chunks, S.CHUNKS):
            c = begin + tl.arange(0, S.CHUNKS)[None, :]
            at = (b * rows.target.chunks)[:, None] + c
            inside = held[:, None] & (c < rows.target.chunks)
            m = tl.load(rows.target.maxes + at, mask=inside, other=0.0)
            s = tl.load(rows.target.sums + at, mask=inside, other=0.0)
            share = s * tl.exp2(scaled(m, p.most[:, None], (p.scale * LOG2E)[:, None]) - (p.log_norm * LOG2E)[:, None])
            tl.store(rows.masses + at, tl.where(s > 0, share, 0.0), mask=inside)
        tl.debug_barrier()
    return p, held


@triton.jit
def draft_row(tree, b, child, on):
    """The row that each child was drawn from; -1: one-hot."""
    at = b * tree.N + child
    if tree.draft_row is None:
        return tl.maximum(entry(tree.parents, at, on), -1)
    else:
        return tl.maximum(entry(tree.draft_row, at, on), -1)


@triton.jit
def draft_law(tree, rows, b, child, token, known, known_row, on, S):
    """The law q that each child was drawn from, the bits of status; and the law that is known now, of which row. A row that is no law
    flags its draft."""
    q = one_hot(token)
    bits = tl.zeros([S.ROWS], tl.int32)
    if rows.draft.rows is not None:
        row = draft_row(tree, b, child, on)
        drawn = on & (row >= 0)
        unknown = drawn & (row != known_row)
        if some(unknown):
            known = choose(unknown, dist(rows.draft, b, row, unknown, False, S), known)
            known_row = tl.where(unknown, row, known_row)
        valid = is_valid(rows.draft, known)
        bits = tl.where(drawn & ~valid, INVALID_ROW | INVALID_DRAFT, 0)
        nothing = one_hot(token * 0 - 1)
        q = choose(drawn, choose(valid, known, nothing), q)
    return q, bits, known, known_row


@triton.jit
def keep(tree, out, b, depth, child, token, log_p, on):
    at = b * (tree.D + 1) + depth
    tl.store(out.tokens + at, token, mask=on)
    tl.store(out.logprobs + at, log_p.to(tl.float32), mask=on)
    tl.store(out.path + at + 1, child.to(tl.int32), mask=on)


@triton.jit
def finish(tree, rows, random, out, chain, held, depth, status, exists, S):
    """The final token, from the chain or, where it has no mass, from what it began with, or from p; and the padding behind it."""
    b = chain.b
    p = chain.p
    plain, hot = standing(rows, p, chain.at, exists)
    sure = exists & (hot >= 0)
    pending = exists & ~sure & (p.row >= 0)
    found = exists & False
    empty = found
    n = chain.n
    total = tl.zeros([S.ROWS], tl.float64)
    at = b * rows.target.chunks
    for _ in range(0, 3 if rows.BLENDS else 2):
        summing = pending & ~held
        if some(summing):
            chain_sum(rows, Chain(b, p, chain.at, n), summing, S)
        mass = total_mass(rows.masses, at, rows.target.chunks, pending, S.ROWS, S.CHUNKS)
        here = pending & is_valid(rows.target, p) & has_mass(mass)
        total = tl.where(here, mass, total)
        found |= here
        pending &= ~here & ((n > 0) | ~plain)
        empty |= pending
        if rows.BLENDS:
            last = pending & (n == 0)
            put_p(rows, chain.at, p, last)
            plain |= last
        n = tl.where(found, n, 0)
    lost = exists & ~sure & ~found
    u = coin(random, b, random.columns + b * 0, DOMAIN_FINAL, b * 0, exists)
    c, into, mass = pick_chunk(rows.masses, at, rows.target.chunks, u * total, found, S.ROWS, S.CHUNKS)
    seen = lost & (p.row >= 0)
    largest = tl.zeros([S.ROWS], tl.float32)
    if some(seen):
        largest = largest_of(rows.target.maxes, at, rows.target.chunks, seen, S.ROWS, S.CHUNKS)
        c = tl.where(seen, first_chunk_with(rows.target.maxes, at, rows.target.chunks, largest, seen, S.ROWS, S.CHUNKS), c)
    z, w = chain_chunk(rows, b, p, chain.at, n, c, found | seen, S.WIDTH)
    lane = tl.where(found, pick_lane(w, into, mass, S.WIDTH), tl.where(seen, first_lane_with(z, largest, S.WIDTH), 0))
    token = tl.where(sure, hot, c.to(tl.int64) * CHUNK + lane)
    _, log_p = prob(rows.target, b, p, token, found | sure)
    log_p = tl.where(lost, float("nan"), log_p)
    status |= tl.where(found & empty, EMPTY_RESIDUAL, 0) | tl.where(lost, INVALID_ROW, 0)

    first = b * (tree.D + 1)
    tl.store(out.num_accepted + b, depth.to(tl.int32), mask=exists)
    tl.store(out.status + b, status, mask=exists)
    tl.store(out.path + first, tl.zeros([S.ROWS], tl.int32), mask=exists)
    for begin in range(0, tree.D + 1, tree.TILE):
        j = begin + tl.arange(0, tree.TILE)[None, :]
        last = j == depth[:, None]
        here = exists[:, None] & (j >= depth[:, None]) & (j <= tree.D)
        column = first[:, None] + j
        tl.store(out.tokens + column, tl.where(last, token[:, None], -1), mask=here)
        tl.store(out.logprobs + column, tl.where(last, log_p[:, None], 0.0).to(tl.float32), mask=here)
        tl.store(out.path + column, tl.full(column.shape, -1, tl.int32), mask=here & ~last)

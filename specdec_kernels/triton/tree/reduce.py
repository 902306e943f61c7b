# SPDX-License-Identifier: Apache-2.0
"""A rejection at a node (csrc/ops/verify_tree/walk.h): the draft's distribution q without the removed tokens, and the
node's residual after q is subtracted."""

import triton
import triton.language as tl

from ..core.draw import INVALID_DRAFT, has_mass
from ..core.ids import ENTRY, chunk_ids, merged_chunk
from ..core.memory import get_value, some
from ..core.residual import INTS, REMOVED, Residual, draft_chunk, put_subtraction, subtracting, sum_chunks, weight
from ..core.row import (
    FLT_MIN,
    Dist,
    RowStats,
    by_row,
    chunk_sum,
    chunks_from,
    chunks_of,
    clean_q,
    each,
    each_request,
    lane_of,
    load_chunk,
    max_of,
)
from ..core.rows import choose, draft_prob, each_dist, is_something, one_hot, prob
from .walk import Rest


@triton.jit
def without_removed(sides, x, ids, at, n, most, c, alive, value, S):
    """Return chunk c of a row, with `value` at the tokens that n subtractions removed. most: the largest n.

    ids: the ids of the chunk's entries; None: those of its lanes."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    for j in range(0, most):
        removed = get_value(sides.room.ints + (at + j) * INTS + REMOVED, alive & (j < n), -1)
        if ids is None:
            x = tl.where(lane == lane_of(removed, c)[:, None], value, x)
        else:
            x = tl.where(ids == removed[:, None], value, x)
    return x


@triton.jit
def draft_mass(sides, q, residual, on, S):
    """Return the sum of q's row without the removed tokens."""
    q = each_dist(q, S)
    b = each_request(S)
    at = each(residual.at, S)
    n = each(residual.n, S)
    alive = each(on, S)
    most = tl.max(tl.where(on, residual.n, 0), 0)
    total = tl.zeros([S.ROWS * S.TOGETHER], tl.float64)
    chunks = chunks_of(sides.draft)
    for begin in range(0, chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < chunks)
        if sides.draft.ids.numbers is None:
            y = draft_chunk(sides.draft, b, q, c, here, S)
            y = without_removed(sides, y, None, at, n, most, c, alive, 0.0, S)
        else:
            ids, z = merged_chunk(sides.draft, b, q.row, None, c, here & (q.hot < 0), ENTRY, S)
            y = without_removed(sides, clean_q(z), ids, at, n, most, c, alive, 0.0, S)
        total += tl.sum(y, 1).to(tl.float64)
    return tl.sum(by_row(total, S), 1)


@triton.jit
def moved(total, most, new, scale):
    """Rescale a sum of exponentials that is relative to the logit `most`, to be relative to `new`."""
    x = (most.to(tl.float64) - new.to(tl.float64)) * scale.to(tl.float64)
    return tl.where(total > 0, total * tl.exp(tl.where(total > 0, x, 0.0)), 0.0)


@triton.jit
def stats_without(sides, q, residual, on, S):
    """Return log_norm and max of q's logits without the removed tokens; log_norm is NaN if nothing is left.

    The sum is relative to the largest logit that is left, so it does not underflow however little is left."""
    q = each_dist(q, S)
    b = each_request(S)
    at = each(residual.at, S)
    n = each(residual.n, S)
    alive = each(on, S)
    removed = tl.max(tl.where(on, residual.n, 0), 0)
    most = tl.full([S.ROWS * S.TOGETHER], -float("inf"), tl.float32)
    total = tl.zeros([S.ROWS * S.TOGETHER], tl.float64)
    chunks = chunks_of(sides.draft)
    for begin in range(0, chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        z = load_chunk(sides.draft, b, q.row, c, alive & (c < chunks), -float("inf"), S)
        if sides.draft.ids.numbers is None:
            z = without_removed(sides, z, None, at, n, removed, c, alive, -float("inf"), S)
        else:
            ids = chunk_ids(sides.draft, b, q.row, c, alive & (c < chunks), S)
            z = without_removed(sides, z, ids, at, n, removed, c, alive, -float("inf"), S)
        kept = tl.where(z >= q.stats.cutoff[:, None], z, -float("inf"))
        largest, mass = chunk_sum(kept, q.stats.scale, q.stats.cutoff)
        new = tl.maximum(most, largest)
        scale = q.stats.scale
        total = moved(total, most, new, scale) + moved(mass.to(tl.float64), largest, new, scale)
        most = new
    new = max_of(most, S)
    total = tl.sum(by_row(moved(total, most, each(new, S), q.stats.scale), S), 1)
    return tl.log(tl.where(total > 0, total, float("nan"))).to(tl.float32), new


@triton.jit
def left_of(sides, q, residual, on, S):
    """Return q without the removed tokens, and the share of q that is left.

    A row of logits gets new stats, and its share is 1. A row of probabilities is returned unchanged with its share. If
    nothing is left, no distribution is returned."""
    share = tl.full([S.ROWS], 1.0, tl.float64)
    if sides.draft.data is not None:
        has_row = on & (q.row >= 0) & (q.hot < 0) & (residual.n > 0)
        nothing = one_hot(q.row * 0 - 1)
        if sides.draft.PROBS:
            if some(has_row):
                share = tl.where(has_row, draft_mass(sides, q, residual, has_row, S), 1.0)
            q = choose(share >= FLT_MIN, q, nothing)
        else:
            left = share
            for j in range(0, tl.max(tl.where(has_row, residual.n, 0), 0)):
                here = has_row & (j < residual.n)
                removed = get_value(sides.room.ints + (residual.at + j) * INTS + REMOVED, here, -1)
                removed_p, _ = prob(sides.draft, residual.b, q, removed, here)
                left -= removed_p
            # If little is left, the subtraction has cancelled. The rest is then summed, relative to its largest logit.
            adding = has_row & ~(left > 0.125)
            log_norm = q.stats.log_norm + tl.log(tl.where(has_row & ~adding, left, 1.0)).to(tl.float32)
            most = q.stats.max
            if some(adding):
                new_norm, new_most = stats_without(sides, q, residual, adding, S)
                log_norm = tl.where(adding, new_norm, log_norm)
                most = tl.where(adding, new_most, most)
            new = Dist(q.row, q.hot, RowStats(q.stats.scale, q.stats.cutoff, log_norm, most))
            q = choose(log_norm == log_norm, new, nothing)
    return q, share


@triton.jit
def draft_of(sides, b, token, q, share, on, S):
    """Return the probability of each child's token under the q of left_of(), and the status bits if it is invalid."""
    q_t = tl.full([S.ROWS], 1.0, tl.float64)
    if sides.draft.data is not None:
        p_t, _ = prob(sides.draft, b, q, token, on)
        q_t = draft_prob(p_t) / share
    return q_t, tl.where(on & ~(q_t > 0), INVALID_DRAFT, 0)


@triton.jit
def reduce(sides, residual, rest, q, scale, s, removed, on, S):
    """Normalise the residual r and replace it by (scale * r - s * q)+ where `on` is set. A one-hot q removes its token.

    Return the new Rest, and its weight: 0 if nothing is left, NaN if p is invalid. If less than 2^-126 is left, it
    counts as nothing and r stays as it was. Apart from rounding, this happens with a probability of at most 2^-126."""
    n = rest.n
    taking = on & is_something(q)
    m = tl.where(taking, scale / rest.total, 1.0).to(tl.float32)
    put_subtraction(sides, residual.at + n, subtracting(q, m, s.to(tl.float32), removed), on)
    longer = Residual(residual.b, residual.p, residual.at, n + taking.to(tl.int64))
    kept = tl.zeros([S.ROWS], tl.float64)
    hot = residual.p.hot
    by_token = taking & (hot >= 0)
    if not sides.target.PROBS:
        by_token |= taking & (q.hot >= 0)
    if some(by_token):
        before = Residual(residual.b, residual.p, residual.at, n + tl.where(hot >= 0, 1, 0))
        r, _ = weight(sides, before, tl.where(hot >= 0, hot, q.hot), by_token)
        kept = tl.where(by_token, tl.where(hot >= 0, r, scale * (1 - r / rest.total)), 0.0)
    adding = taking & (hot < 0) & ~(kept > 0.125)
    if some(adding):
        kept = tl.where(adding, sum_chunks(sides, longer, adding, S), kept)
    stays = taking & (kept >= FLT_MIN) & (kept < float("inf"))
    lost = on & ~stays
    kept = tl.where(stays, kept, 0.0)
    if some(lost):
        if sides.target.PROBS:  # only the sum of a row of probabilities shows that it is invalid
            whole = Residual(residual.b, residual.p, residual.at, n * 0)
            unlawful = lost & (residual.p.hot < 0)
            mass = sum_chunks(sides, whole, unlawful, S)
            kept = tl.where(unlawful & ~has_mass(mass), float("nan"), kept)
        nothing = Dist(removed * 0 - 1, removed * 0 - 1, q.stats)
        put_subtraction(sides, residual.at + n, subtracting(nothing, m * 0 + 1, m * 0 + 1, removed), lost)
    held = tl.where(on, stays & adding, rest.held)
    return Rest(rest.p, n + tl.where(on, 1, 0), tl.where(stays, kept, rest.total), held), kept

# SPDX-License-Identifier: Apache-2.0
"""What several rejections leave of a law, evaluated id by id: csrc/core/residual.h for a block of requests. No residual is stored."""

import triton
import triton.language as tl

from .mixture import first_chunk, first_weight, standing
from .final_token import has_mass, total_mass
from ..chain.draft_test import INVALID_DRAFT
from .row import FLT_MIN, chunk_sum, clean_q, finite_max, is_bad, lane_of, load_chunk, probs
from .links import INTS, Chain, get_link, put_link, subtracting
from .side import Dist, choose, chunks_from, draft_prob, each, each_dist, each_request, is_something, offset_of, one_hot, prob
from ..tree.tree import some


@triton.jit
def chain_weight(rows, chain, v, mask):
    """The weight of ids v in float64, NaN where p is no law; and whether a link took v."""
    r = first_weight(rows, chain.b, chain.p, chain.at, v, mask)
    gone = mask & False
    for j in range(0, tl.max(tl.where(mask, chain.n, 0), 0)):
        here = mask & (j < chain.n)
        link = get_link(rows, chain.at + j, here)
        r *= link.m.to(tl.float64)
        r *= tl.where((link.q.hot >= 0) & (link.q.hot == v), 0.0, 1.0)
        if rows.draft.rows is not None:
            has_row = (link.q.row >= 0) & (link.q.hot < 0)
            q, _ = prob(rows.draft, chain.b, link.q, v, has_row & ~gone)
            left = r - link.s.to(tl.float64) * tl.minimum(draft_prob(q), link.cap.to(tl.float64) * r)
            r = tl.where(has_row, tl.where(left < 0, 0.0, left), r)
        gone |= here & (link.gone == v)
    return r, gone


@triton.jit
def draft_chunk(draft, b, q, c, alive, WIDTH: tl.constexpr):
    """Chunk c of q's row as a residual sees it; 0 where it has none."""
    here = alive & (q.row >= 0) & (q.hot < 0)
    if draft.PROBS:
        return clean_q(load_chunk(draft.rows, offset_of(draft, b, q.row), draft.V, c, here, 0.0, WIDTH))
    else:
        z = load_chunk(draft.rows, offset_of(draft, b, q.row), draft.V, c, here, -float("inf"), WIDTH)
        return tl.where(here[:, None], clean_q(probs(z, q.scale, q.cutoff, q.log_norm, q.most)), 0.0)


@triton.jit
def chain_chunk(rows, b, p, at, n, c, alive, WIDTH: tl.constexpr):
    """Chunk c of p's row as it is, and the weights that its links leave."""
    z, w = first_chunk(rows, b, p, at, c, alive, WIDTH)
    lane = tl.arange(0, WIDTH)[None, :]
    drafted = lane >= 0
    drafted = drafted & alive[:, None]
    for j in range(0, tl.max(tl.where(alive, n, 0), 0)):
        here = alive & (j < n)
        link = get_link(rows, at + j, here)
        w *= link.m[:, None]
        w = tl.where(lane == lane_of(link.q.hot, c)[:, None], 0.0, w)
        if rows.draft.rows is not None:
            q = tl.where(drafted, draft_chunk(rows.draft, b, link.q, c, here, WIDTH), 0.0)
            w = tl.maximum(w - link.s[:, None] * tl.minimum(q, link.cap[:, None] * w), 0.0)
            drafted &= lane != lane_of(link.gone, c)[:, None]
    return z, w


@triton.jit
def chain_sum(rows, chain, on, S):
    """The total of a chain in float64, NaN where p is no law. Its chunks stay in rows.masses, those of p in rows.target.maxes."""
    p = each_dist(chain.p, S)
    b = each_request(S)
    at = each(chain.at, S)
    n = each(chain.n, S)
    out = b * rows.target.chunks
    alive = each(on, S)
    tl.debug_barrier()
    for begin in range(0, rows.target.chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        here = alive & (c < rows.target.chunks)
        z, w = chain_chunk(rows, b, p, at, n, c, here, S.WIDTH)
        mass = tl.sum(w, 1)
        if rows.target.PROBS:
            mass = tl.where(is_bad(z), float("nan"), mass)
        tl.store(rows.masses + out + c, mass, mask=here)
        tl.store(rows.target.maxes + out + c, finite_max(z), mask=here)
    tl.debug_barrier()
    return total_mass(rows.masses, chain.b * rows.target.chunks, rows.target.chunks, on, S.ROWS, S.CHUNKS)


@triton.jit
def without_gone(rows, x, at, n, most, c, alive, value, WIDTH: tl.constexpr):
    """Chunk c of a row, with `value` at the tokens that left with n links, at most `most`."""
    lane = tl.arange(0, WIDTH)[None, :]
    for j in range(0, most):
        gone = tl.load(rows.ints + (at + j) * INTS + 1, mask=alive & (j < n), other=-1)
        x = tl.where(lane == lane_of(gone, c)[:, None], value, x)
    return x


@triton.jit
def draft_mass(rows, q, chain, on, S):
    """What q's row holds without the tokens that have left, added up."""
    q = each_dist(q, S)
    b = each_request(S)
    at = each(chain.at, S)
    n = each(chain.n, S)
    alive = each(on, S)
    total = tl.zeros([S.ROWS * S.TOGETHER], tl.float64)
    for begin in range(0, rows.draft.chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        y = draft_chunk(rows.draft, b, q, c, alive & (c < rows.draft.chunks), S.WIDTH)
        y = without_gone(rows, y, at, n, tl.max(tl.where(on, chain.n, 0), 0), c, alive, 0.0, S.WIDTH)
        total += tl.sum(y, 1).to(tl.float64)
    return tl.sum(tl.reshape(total, [S.ROWS, S.TOGETHER]), 1)


@triton.jit
def law_without(rows, q, chain, on, S):
    """log_norm and max of what is left of q's logits without the tokens that have left: measured from the largest that is left, so that
    nothing is lost however little that weighs. log_norm is NaN where nothing is left."""
    q = each_dist(q, S)
    b = each_request(S)
    at = each(chain.at, S)
    n = each(chain.n, S)
    alive = each(on, S)
    most = tl.full([S.ROWS * S.TOGETHER], -float("inf"), tl.float32)
    total = tl.zeros([S.ROWS * S.TOGETHER], tl.float64)
    for begin in range(0, rows.draft.chunks, S.TOGETHER):
        c = chunks_from(begin, S)
        z = load_chunk(rows.draft.rows, offset_of(rows.draft, b, q.row), rows.draft.V, c, alive & (c < rows.draft.chunks), -float("inf"), S.WIDTH)
        z = without_gone(rows, z, at, n, tl.max(tl.where(on, chain.n, 0), 0), c, alive, -float("inf"), S.WIDTH)
        largest, mass = chunk_sum(tl.where(z >= q.cutoff[:, None], z, -float("inf")), q.scale, q.cutoff)
        new = tl.maximum(most, largest)
        total = moved(total, most, new, q.scale) + moved(mass.to(tl.float64), largest, new, q.scale)
        most = new
    parts = tl.reshape(most, [S.ROWS, S.TOGETHER])
    new = tl.max(parts, 1)
    total = tl.sum(tl.reshape(moved(total, most, each(new, S), q.scale), [S.ROWS, S.TOGETHER]), 1)
    return tl.log(tl.where(total > 0, total, float("nan"))).to(tl.float32), new


@triton.jit
def moved(total, most, new, scale):
    """A sum of exponentials relative to one logit, relative to another."""
    x = (most.to(tl.float64) - new.to(tl.float64)) * scale.to(tl.float64)
    return tl.where(total > 0, total * tl.exp(tl.where(total > 0, x, 0.0)), 0.0)


@triton.jit
def left_of(rows, q, chain, on, S):
    """What is left of q without the tokens that have left: a law of its own if q is one of logits, else q as it is and the share that
    they leave of it. Nothing where nothing is left."""
    share = tl.full([S.ROWS], 1.0, tl.float64)
    if rows.draft.rows is not None:
        has_row = on & (q.row >= 0) & (q.hot < 0) & (chain.n > 0)
        nothing = one_hot(q.row * 0 - 1)
        if rows.draft.PROBS:
            if some(has_row):
                share = tl.where(has_row, draft_mass(rows, q, chain, has_row, S), 1.0)
            q = choose(share >= FLT_MIN, q, nothing)
        else:
            left = share
            for j in range(0, tl.max(tl.where(has_row, chain.n, 0), 0)):
                here = has_row & (j < chain.n)
                gone = tl.load(rows.ints + (chain.at + j) * INTS + 1, mask=here, other=-1)
                gone_p, _ = prob(rows.draft, chain.b, q, gone, here)
                left -= gone_p
            adding = has_row & ~(left > 0.125)  # cancellation, and perhaps next to nothing: what is left is added up, in units of its own
            log_norm = q.log_norm + tl.log(tl.where(has_row & ~adding, left, 1.0)).to(tl.float32)
            most = q.most
            if some(adding):
                new_norm, new_most = law_without(rows, q, chain, adding, S)
                log_norm = tl.where(adding, new_norm, log_norm)
                most = tl.where(adding, new_most, most)
            q = choose(log_norm == log_norm, Dist(q.row, q.hot, q.scale, q.cutoff, log_norm, most), nothing)
    return q, share


@triton.jit
def draft_of(rows, b, token, q, share, on, S):
    """q of each child's token, drawn from what was left of a law; and the bits of status where it is no probability."""
    q_t = tl.full([S.ROWS], 1.0, tl.float64)
    if rows.draft.rows is not None:
        p_t, _ = prob(rows.draft, b, q, token, on)
        q_t = draft_prob(p_t) / share
    return q_t, tl.where(on & ~(q_t > 0), INVALID_DRAFT, 0)


@triton.jit
def reduce(rows, chain, total, q, weight, s, gone, on, S):
    """The chain becomes (weight * chain - s * q)+ where `on`; a one-hot q keeps nothing of its token. n, total and what is left,
    the chain being normalised before; and whether rows.masses holds its chunks. Where nothing is left, or less than 2^-126, the chain
    stays as it was (but for rounding, nobody gets there more often than that). NaN: p is no law."""
    n = chain.n
    taking = on & is_something(q)
    m = tl.where(taking, weight / total, 1.0).to(tl.float32)
    put_link(rows, chain.at + n, subtracting(q, m, s.to(tl.float32), gone), on)
    longer = Chain(chain.b, chain.p, chain.at, n + taking.to(tl.int64))
    kept = tl.zeros([S.ROWS], tl.float64)
    plain, hot = standing(rows, chain.p, chain.at, on)
    by_token = taking & (hot >= 0)
    if not rows.target.PROBS:
        by_token |= taking & plain & (q.hot >= 0)
    if some(by_token):
        before = Chain(chain.b, chain.p, chain.at, n + tl.where(hot >= 0, 1, 0))
        r, _ = chain_weight(rows, before, tl.where(hot >= 0, hot, q.hot), by_token)
        kept = tl.where(by_token, tl.where(hot >= 0, r, weight * (1 - r / total)), 0.0)
    adding = taking & (hot < 0) & ~(kept > 0.125)
    if some(adding):
        kept = tl.where(adding, chain_sum(rows, longer, adding, S), kept)
    stays = taking & (kept >= FLT_MIN) & (kept < float("inf"))
    lost = on & ~stays
    kept = tl.where(stays, kept, 0.0)
    if some(lost):
        if rows.target.PROBS:  # a probability row that is no law is found out by its sum
            mass = chain_sum(rows, Chain(chain.b, chain.p, chain.at, n * 0), lost & (chain.p.hot < 0), S)
            kept = tl.where(lost & (chain.p.hot < 0) & ~has_mass(mass), float("nan"), kept)
        nothing = Dist(gone * 0 - 1, gone * 0 - 1, q.scale, q.cutoff, q.log_norm, q.most)
        put_link(rows, chain.at + n, subtracting(nothing, m * 0 + 1, m * 0 + 1, gone), lost)
    return n + tl.where(on, 1, 0), tl.where(stays, kept, total), kept, stays & adding

# SPDX-License-Identifier: Apache-2.0
"""One position of a walk by a rule: the law that stands for the target's, and the one that the draft was drawn from
(csrc/ops/verify_chain/position.h). What is known of it stays in memory, for the way back and the final draw."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..accept import is_draft_prob
from ..rules.confidence import confidence
from .draft_test import INVALID_DRAFT, INVALID_ROW
from ..core.pair import Dist, dist, entry, defines_distribution, prob_at
from ..core.philox import given_uniform, uniform
from ..rules.rule_dist import Pi, kept, make_law
from ..rules.rule import EXACT, LENIENCE, LOSSY, THRESHOLDS, RELAXED, TYPICAL, asks_of, is_of_log, reads_draft, replaces_target

INTS = tl.constexpr(4)  # of a place
FLOATS = tl.constexpr(6)


class Drafts(NamedTuple):
    """Of all requests; bonus: whether the engine sampled the bonus token itself."""

    tokens: Any
    batch_stride: Any
    stride: Any
    G: Any
    cu_draft: Any
    bonus: Any


class Request(NamedTuple):
    b: Any
    start: Any  # of its drafts, in a ragged call
    g: Any  # how many there are


class Coins(NamedTuple):
    uniforms: Any  # [B, G+1]
    seed: Any
    seed_stride: Any
    offset: Any
    offset_stride: Any


class Places(NamedTuple):
    ints: Any  # [B, G+1, INTS]
    floats: Any  # [B, G+1, FLOATS]


class Place(NamedTuple):
    p: Any
    q: Any  # what a rejection takes away
    pi: Any
    tested: Any  # there is a draft, and the rows are laws that can judge it
    r: Any  # block verification: the chance to come at least here


@triton.jit
def coin(coins, drafts, x, domain, slot, column):
    if coins.uniforms is not None:
        return given_uniform(tl.load(coins.uniforms + x.b * (drafts.G + 1) + column))
    elif coins.seed is not None:
        seed = tl.load(coins.seed + x.b * coins.seed_stride).to(tl.int64)
        offset = tl.load(coins.offset + x.b * coins.offset_stride).to(tl.int64)
        return uniform(seed, offset, domain, slot)
    else:
        return tl.full([], 0.0, tl.float64)


@triton.jit
def draft_token(drafts, x, i, target, draft):
    """The draft at position i, -1 where there is none. An id outside both vocabularies ends the draft."""
    if drafts.cu_draft is None:
        at = x.b * drafts.batch_stride + i * drafts.stride
    else:
        at = (x.start + i) * drafts.stride
    d = tl.load(drafts.tokens + at, mask=i < x.g, other=-1).to(tl.int64)
    vocabulary = target.V
    if draft.rows is not None:
        vocabulary = tl.maximum(target.V, draft.V)
    return tl.where((d >= 0) & (d < vocabulary), d, -1)


@triton.jit
def draws_at(drafts, x, i, d):
    """Whether a token is drawn where a walk stops at position i."""
    if drafts.bonus:
        return (d >= 0) | (i != x.g)
    else:
        return d == d


@triton.jit
def look(drafts, x, i, target, draft, rule, alpha, r, SCORES_END: tl.constexpr, S):
    """Position i as the rule sees it: the place, the draft (-1: none), p, ln p and q of it, whether q is kept there, its confidence for
    the rules that read p alone, and the bits of status."""
    d = draft_token(drafts, x, i, target, draft)
    drafted = d >= 0
    draws = draws_at(drafts, x, i, d)
    p = dist(target, drafts, x, i, draws, d * 0 - 1)
    z_p = entry(target, p, d)
    p_d = prob_at(target, p, d, z_p)
    fine = draws & defines_distribution(p) & ~(drafted & (p_d != p_d))
    of_law = replaces_target(rule)
    scored = drafted
    if SCORES_END:
        scored = drafted | (of_law & (rule != EXACT))
    reads = fine & scored & reads_draft(rule)
    # Where the target is greedy the draft is its one token or is not, whatever it was drawn from, unless the rule says more.
    matched = drafted & (p.hot >= 0) & ((rule == EXACT) | (rule == LOSSY) | (rule == LENIENCE))
    if draft.rows is None:
        has_row = reads & False
    else:
        has_row = reads & ~matched
    takes_d = (reads & ~has_row) | (fine & drafted & (rule == THRESHOLDS))
    q = dist(draft, drafts, x, i, has_row, tl.where(takes_d, d, -1))

    z_q = entry(draft, q, d)
    q_d = tl.where(drafted & reads, prob_at(draft, q, d, z_q), 1.0)
    q_law = ~has_row | defines_distribution(q)
    status = tl.where(is_draft_prob(q_d), 0, INVALID_DRAFT) | tl.where(q_law, 0, INVALID_ROW)
    tested = fine & drafted & tl.where(reads, q_law, d < target.V)
    q = Dist(q.row & q_law, q.offset, q.hot, q.scale, q.cutoff, q.log_norm, q.most)

    judged = reads & q_law
    whole = is_of_log(rule)
    wants_p, wants_q = asks_of(rule, judged, target.PROBS, draft.PROBS)
    # Medusa's entropy is summed only where its bounds, 0 <= exp(-H) <= max p, leave the test open.
    open_p = (p_d > 0) & ~(p_d > alpha.first)
    if not target.PROBS:
        open_p &= ~(p_d > alpha.second * tl.exp(-p.log_norm.to(tl.float64)))
    typical = tested & (rule == TYPICAL)
    relaxed = tested & (rule == RELAXED)
    wants_p |= (typical & (p.hot < 0) & open_p) | relaxed
    of_p = confidence(target, p, typical, z_p, wants_p, whole | typical | relaxed, S)
    of_q = confidence(draft, q, False, z_p, wants_q, whole, S)
    pi = make_law(rule, alpha.first, target, draft, p, q, of_p, of_q, judged)
    keeps = kept(pi, z_p, tl.where(q.row, z_q, 1.0))
    place = Place(p, q, pi, tested, r)
    return place, d, p_d, z_p, q_d, keeps, of_p, tl.where(reads, status, 0)


@triton.jit
def put_place(places, drafts, x, i, place):
    """Between two barriers: every thread may read it next."""
    at = x.b * (drafts.G + 1) + i
    tl.debug_barrier()
    ints = places.ints + at * INTS
    tl.store(ints, place.pi.form)
    tl.store(ints + 1, place.pi.ruler)
    tl.store(ints + 2, place.q.row.to(tl.int32) | (place.tested.to(tl.int32) << 1) | (place.pi.open << 2))
    tl.store(ints + 3, tl.where(place.q.row, -1, place.q.hot).to(tl.int32))
    floats = places.floats + at * FLOATS
    tl.store(floats, place.r)
    tl.store(floats + 1, place.pi.of_p.to(tl.float64))
    tl.store(floats + 2, place.pi.of_q.to(tl.float64))
    tl.store(floats + 3, place.pi.cut.to(tl.float64))
    tl.store(floats + 4, place.pi.lack)
    tl.debug_barrier()


@triton.jit
def get_place(places, drafts, x, i, target, draft):
    """A place, and whether a token is drawn there."""
    at = x.b * (drafts.G + 1) + i
    ints = places.ints + at * INTS
    floats = places.floats + at * FLOATS
    draws = draws_at(drafts, x, i, draft_token(drafts, x, i, target, draft))
    bits = tl.load(ints + 2)
    p = dist(target, drafts, x, i, draws, x.b * 0 - 1)
    q = dist(draft, drafts, x, i, (bits & 1) > 0, tl.load(ints + 3).to(tl.int64))
    of_p, of_q = tl.load(floats + 1).to(tl.float32), tl.load(floats + 2).to(tl.float32)
    cut = tl.load(floats + 3).to(tl.float32)
    pi = Pi(tl.load(ints), tl.load(ints + 1), of_p, of_q, cut, tl.load(floats + 4), (bits & 4) >> 2)
    return Place(p, q, pi, (bits & 2) > 0, tl.load(floats)), draws

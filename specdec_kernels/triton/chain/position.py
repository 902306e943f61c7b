# SPDX-License-Identifier: Apache-2.0
"""One position of a walk by a rule (csrc/ops/verify_chain/position.h).

It holds p, the draft's distribution q, and pi, which replaces p. A rule makes pi from p, q and, if it needs them, the
confidences of the models (csrc/rules/confidence.h). Positions are stored for a block's walk back and for the final
draw. A program serves one request, so S.ROWS is 1.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.ids import ENTRY, merged_chunk
from ..core.row import (
    FLT_MAX,
    LOG2E,
    Dist,
    chunks_from,
    chunks_of,
    each,
    each_request,
    finite_max,
    is_bad,
    load_chunk,
    max_of,
    scaled,
    sum_of,
    weight_of,
    widest,
)
from ..core.rows import entry, is_valid, prob
from ..rules import EXACT, LENIENCE, LOSSY, RELAXED, THRESHOLDS, TYPICAL
from ..rules.rule import asks_of, reads_draft, reads_entropy, replaces_target
from ..rules.rule_dist import Mixture, keeps, make_rule_dist
from .draft_test import dist_at, fault_of, has_number, load_drafts

INTS = tl.constexpr(4)  # stored per position
FLOATS = tl.constexpr(5)


class Confidence(NamedTuple):
    largest: Any  # the largest probability; NaN if the row is invalid
    entropy: Any
    max: Any  # the largest entry
    above: Any  # the number of entries larger than `least`


@triton.jit
def is_unscaled(d):
    return (d.hot < 0) & (d.stats.scale == 1) & (d.stats.cutoff == -FLT_MAX)


@triton.jit
def load_row(side, d, c, reads, S):
    """Return chunks c of the distributions' rows; with ids, of the places sorted by id (merged_chunk)."""
    alive = each(reads & (d.row >= 0), S)
    if side.ids.numbers is None:
        return load_chunk(side, each_request(S), each(d.row, S), c, alive, -float("inf"), S)
    else:
        return merged_chunk(side, each_request(S), each(d.row, S), None, c, alive, ENTRY, S)[1]


@triton.jit
def count_above(z, least, S):
    return tl.sum(tl.reshape(tl.sum((z > each(least, S)[:, None]).to(tl.int32), 1), [S.ROWS, S.TOGETHER]), 1)


@triton.jit
def prob_confidence(side, d, least, reads, S):
    top = tl.full([S.ROWS], 0.0, tl.float32)
    bad = tl.full([S.ROWS], 0, tl.int32)
    above = tl.full([S.ROWS], 0, tl.int32)
    entropy = tl.full([S.ROWS], 0.0, tl.float64)
    for begin in range(0, tl.max(tl.where(reads, chunks_of(side), 0), 0), S.TOGETHER):
        z = load_row(side, d, chunks_from(begin, S), reads, S)
        top = tl.maximum(top, max_of(finite_max(z), S))
        bad = tl.maximum(bad, max_of(is_bad(z).to(tl.int32), S))
        normal = (z >= 1.1754943508222875e-38) & (z < float("inf"))
        x = tl.where(normal, z, 1.0)
        entropy -= sum_of(x * tl.log(x), S)
        above += count_above(z, least, S)
    fine = (bad == 0) & (top > 0)
    largest = tl.where(fine, top.to(tl.float64), float("nan"))
    return Confidence(largest, tl.where(fine, entropy, float("nan")), top, above)


@triton.jit
def logit_confidence(side, d, scale, cutoff, least, reads, S):
    top = tl.full([S.ROWS], -float("inf"), tl.float32)
    total = tl.full([S.ROWS], 0.0, tl.float64)
    parts = tl.full([S.ROWS], 0.0, tl.float64)  # sum of -x exp(x)
    above = tl.full([S.ROWS], 0, tl.int32)
    least_kept = each(cutoff, S)[:, None]
    for begin in range(0, tl.max(tl.where(reads, chunks_of(side), 0), 0), S.TOGETHER):
        z = load_row(side, d, chunks_from(begin, S), reads, S)
        above += count_above(z, least, S)
        new = tl.maximum(top, max_of(finite_max(z), S))
        x = scaled(z, each(new, S)[:, None], each(scale, S)[:, None])
        e = tl.where(z < least_kept, 0.0, weight_of(x * LOG2E))  # NaN is not less, so it reaches the sum
        of_x = tl.where(
            z >= least_kept, e * -tl.maximum(x, -100.0), 0.0
        )  # below -100, e is 0; the bound on x keeps their product finite
        # The sums so far are relative to the old maximum, and become relative to the new one.
        moved = tl.where(top > -float("inf"), scaled(top, new, scale).to(tl.float64), 0.0)
        shrink = tl.exp(moved)
        parts = (parts - total * moved) * shrink + sum_of(of_x, S)
        total = total * shrink + sum_of(e, S)
        top = new
    fine = (top > -float("inf")) & (total < float("inf"))
    log_norm = tl.where(fine, tl.log(total), float("nan"))
    return Confidence(tl.exp(-log_norm), log_norm + parts / total, top, above)


@triton.jit
def confidence(side, d, sampled, least, wanted, whole, S):
    """Return the confidence of a row. Of logits, it is that of the softmax at T = 1 without filters or, if `sampled`,
    of the distribution that is sampled from.

    Where it is `wanted`, a row of probabilities is always read. A row of logits is read if its stats do not give the
    largest probability, or if the entropy and the count are needed (`whole`). A draft without a row has largest
    probability 1 and entropy 0."""
    has_row = d.row >= 0
    if side.data is None:
        one = tl.full([S.ROWS], 1.0, tl.float64)
        return Confidence(one, one * 0, tl.full([S.ROWS], 1.0, tl.float32), tl.full([S.ROWS], 0, tl.int32))
    else:
        if side.PROBS:
            out = prob_confidence(side, d, least, wanted & has_row, S)
        else:
            known = sampled
            if side.ids.numbers is None:  # with ids, entries of one id add up, and stats do not show the sum
                known |= is_unscaled(d)
            scale = tl.where(sampled, d.stats.scale, 1.0)
            cutoff = tl.where(sampled, d.stats.cutoff, -FLT_MAX)
            reads = wanted & has_row & (whole | ~known)
            read = logit_confidence(side, d, scale, cutoff, least, reads, S)
            certain = tl.where(d.hot >= 0, 1.0, tl.exp(-d.stats.log_norm.to(tl.float64)))
            largest = tl.where(reads, read.largest, certain)
            out = Confidence(largest, read.entropy, tl.where(reads, read.max, d.stats.max), read.above)
        largest = tl.where(has_row, out.largest, 1.0)
        return Confidence(largest, tl.where(has_row, out.entropy, 0.0), out.max, out.above)


class Positions(NamedTuple):
    ints: Any  # [B, G+1, INTS]
    floats: Any  # [B, G+1, FLOATS]


class Position(NamedTuple):
    p: Any
    q: Any  # the distribution that a rejection subtracts
    pi: Any
    tested: Any  # whether there is a draft and its rows are valid; if q is not read, the draft must be below V
    r: Any  # block verification: the probability of reaching this position or a later one


class Look(NamedTuple):
    """A position, with the values that its rule tests."""

    position: Any
    d: Any  # the draft; -1: none
    p: Any  # p of the draft
    z: Any  # the draft's entry in p's row
    q: Any
    kept: Any  # whether pi keeps q at the draft
    of_p: Any  # the target's confidence, for the rules that read p alone
    status: Any


@triton.jit
def draft_token(drafts, x, i, target, draft):
    """Return the draft token at position i; -1 if there is none. An id outside both vocabularies ends the drafts."""
    d = load_drafts(drafts, x, i, i < x.g)
    return tl.where((d >= 0) & (d < widest(target, draft)), d, -1)


@triton.jit
def draws_at(drafts, x, i, d):
    """Return whether a walk that stops at position i draws a token there."""
    if drafts.given.bonus_tokens is None:
        return d == d
    else:
        return (d >= 0) | (i != x.g)


@triton.jit
def scores(rule, drafted, SCORES_END: tl.constexpr):
    """Return whether a rule that reads the draft's row reads it here. The row after the last draft is read only by
    rules that define another distribution than p."""
    if SCORES_END:
        return drafted | (replaces_target(rule) & (rule != EXACT))
    else:
        return drafted


@triton.jit
def confidences(target, draft, p, q, rule, alpha, p_d, z_p, judged, tested, S):
    """Return the confidences of p and q. A row whose confidence the rule does not need is not read."""
    wants_p, wants_q = asks_of(rule, judged, target.PROBS, draft.PROBS)
    # "typical" needs the entropy H only where its bounds do not decide the test: 0 <= exp(-H) and, used for logits
    # only, exp(-H) <= max p.
    open_p = (p_d > 0) & ~(p_d > alpha.first)
    if not target.PROBS:
        open_p &= ~(p_d > alpha.second * tl.exp(-p.stats.log_norm.to(tl.float64)))
    typical = tested & (rule == TYPICAL)
    relaxed = tested & (rule == RELAXED)
    wants_p |= (typical & (p.hot < 0) & open_p) | relaxed
    whole = reads_entropy(rule)
    of_p = confidence(target, p, typical, z_p, wants_p, whole | typical | relaxed, S)
    return of_p, confidence(draft, q, typical & False, z_p, wants_q, whole, S)


@triton.jit
def look(drafts, x, i, target, draft, rule, alpha, r, SCORES_END: tl.constexpr, S):
    d = draft_token(drafts, x, i, target, draft)
    drafted = d >= 0
    draws = draws_at(drafts, x, i, d)
    p = dist_at(target, drafts, x, i, draws, d * 0 - 1, S)
    z_p = entry(target, x.b, p, d, drafted)
    p_d, _ = prob(target, x.b, p, d, drafted)
    fine = draws & is_valid(target, p) & ~(drafted & (p_d != p_d))
    reads = fine & scores(rule, drafted, SCORES_END) & reads_draft(rule)
    # With a greedy target these rules compare the draft with the target's row alone, so q is not read.
    matched = drafted & (p.hot >= 0) & ((rule == EXACT) | (rule == LOSSY) | (rule == LENIENCE))
    if draft.data is None:
        has_row = reads & False
    else:
        has_row = has_number(draft, drafts, x, i, reads & ~matched)
    reads = reads & (drafted | has_row)  # one-hot drafts have no row after the last draft
    takes_d = (reads & ~has_row) | (fine & drafted & (rule == THRESHOLDS))
    q = dist_at(draft, drafts, x, i, has_row, tl.where(takes_d, d, -1), S)
    z_q = entry(draft, x.b, q, d, drafted)
    q_d, _ = prob(draft, x.b, q, d, drafted)
    q_d = tl.where(drafted & reads, q_d, 1.0)
    q_law = ~has_row | is_valid(draft, q)
    status = fault_of(q, q_d, q_law)
    tested = fine & drafted & tl.where(reads, q_law, d < target.V)
    q = Dist(tl.where(q_law, q.row, -1), q.hot, q.stats)

    judged = reads & q_law
    of_p, of_q = confidences(target, draft, p, q, rule, alpha, p_d, z_p, judged, tested, S)
    pi = make_rule_dist(rule, alpha.first, target, draft, p, q, of_p, of_q, judged)
    kept = keeps(pi, z_p, z_q)
    return Look(Position(p, q, pi, tested, r), d, p_d, z_p, q_d, kept, of_p, tl.where(reads, status, 0))


@triton.jit
def put_position(positions, drafts, x, i, position):
    """Store a position, between two barriers, since any thread may read it next."""
    at = x.b * (drafts.G + 1) + i
    has_row = position.q.row >= 0
    tl.debug_barrier()
    ints = positions.ints + at * INTS
    tl.store(ints, position.pi.form)
    tl.store(ints + 1, position.pi.score_row)
    tl.store(ints + 2, has_row.to(tl.int32) | (position.tested.to(tl.int32) << 1) | (position.pi.open << 2))
    tl.store(ints + 3, tl.where(has_row, -1, position.q.hot).to(tl.int32))
    floats = positions.floats + at * FLOATS
    tl.store(floats, position.r)
    tl.store(floats + 1, position.pi.of_p.to(tl.float64))
    tl.store(floats + 2, position.pi.of_q.to(tl.float64))
    tl.store(floats + 3, position.pi.threshold.to(tl.float64))
    tl.store(floats + 4, position.pi.confidence_gap)
    tl.debug_barrier()


@triton.jit
def get_position(positions, drafts, x, i, target, draft, S):
    """Return a stored position, and whether a token is drawn there."""
    at = x.b * (drafts.G + 1) + i
    ints = positions.ints + at * INTS
    floats = positions.floats + at * FLOATS
    draws = draws_at(drafts, x, i, draft_token(drafts, x, i, target, draft))
    bits = tl.load(ints + 2)
    p = dist_at(target, drafts, x, i, draws, x.b * 0 - 1, S)
    q = dist_at(draft, drafts, x, i, (bits & 1) > 0, tl.load(ints + 3).to(tl.int64), S)
    of_p, of_q = tl.load(floats + 1).to(tl.float32), tl.load(floats + 2).to(tl.float32)
    threshold = tl.load(floats + 3).to(tl.float32)
    pi = Mixture(tl.load(ints), tl.load(ints + 1), of_p, of_q, threshold, tl.load(floats + 4), (bits & 4) >> 2)
    return Position(p, q, pi, (bits & 2) > 0, tl.load(floats)), draws

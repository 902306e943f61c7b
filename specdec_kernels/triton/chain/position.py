# SPDX-License-Identifier: Apache-2.0
"""One position of a walk by a rule: the law that stands for the target's, and the one that the draft was drawn from
(csrc/ops/verify_chain/position.h). What is known of it stays in memory, for the way back and the final draw. A program
serves one request: S.ROWS is 1."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.row import Dist, widest
from ..core.rows import entry, is_valid, prob
from ..rules import EXACT, LENIENCE, LOSSY, RELAXED, THRESHOLDS, TYPICAL
from ..rules.confidence import confidence
from ..rules.rule import asks_of, reads_draft, reads_entropy, replaces_target
from ..rules.rule_dist import Mixture, keeps, make_rule_dist
from .draft_test import dist_at, fault_of, has_number, load_drafts

INTS = tl.constexpr(4)  # of a position
FLOATS = tl.constexpr(5)


class Positions(NamedTuple):
    ints: Any  # [B, G+1, INTS]
    floats: Any  # [B, G+1, FLOATS]


class Position(NamedTuple):
    p: Any
    q: Any  # what a rejection takes away
    pi: Any
    tested: Any  # there is a draft, and the rows are laws that can judge it
    r: Any  # block verification: the chance to come at least here


class Look(NamedTuple):
    """A position as its rule sees it."""

    position: Any
    d: Any  # the draft; -1: none
    p: Any  # of the draft
    z: Any  # its entry in p's row
    q: Any
    kept: Any  # whether q is kept there
    of_p: Any  # the target's confidence, for the rules that read p alone
    status: Any


@triton.jit
def draft_token(drafts, x, i, target, draft):
    """The draft at position i, -1 where there is none. An id outside both vocabularies ends the draft."""
    d = load_drafts(drafts, x, i, i < x.g)
    return tl.where((d >= 0) & (d < widest(target, draft)), d, -1)


@triton.jit
def draws_at(drafts, x, i, d):
    """Whether a token is drawn where a walk stops at position i."""
    if drafts.given.bonus_tokens is None:
        return d == d
    else:
        return (d >= 0) | (i != x.g)


@triton.jit
def scores(rule, drafted, SCORES_END: tl.constexpr):
    """Whether the draft's row is asked: behind the drafts, where there is one, by a rule that is a law."""
    if SCORES_END:
        return drafted | (replaces_target(rule) & (rule != EXACT))
    else:
        return drafted


@triton.jit
def confidences(target, draft, p, q, rule, alpha, p_d, z_p, judged, tested, S):
    """Of p and q, as far as the rule asks for them."""
    wants_p, wants_q = asks_of(rule, judged, target.PROBS, draft.PROBS)
    # Medusa's entropy is summed only where its bounds, 0 <= exp(-H) <= max p, leave the test open.
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
    # Where the target is greedy the draft is its one token or is not, whatever it was drawn from, unless the rule says
    # more.
    matched = drafted & (p.hot >= 0) & ((rule == EXACT) | (rule == LOSSY) | (rule == LENIENCE))
    if draft.data is None:
        has_row = reads & False
    else:
        has_row = has_number(draft, drafts, x, i, reads & ~matched)
    reads = reads & (drafted | has_row)  # a one-hot draft says nothing of the position behind it
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
    """Between two barriers: every thread may read it next."""
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
    """A position, and whether a token is drawn there."""
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

# SPDX-License-Identifier: Apache-2.0
"""The distribution pi that a rule uses in place of p (csrc/rules/{rule_dist,make_rule_dist,cascade,lossy}.h).

It is a mixture of p and q, evaluated id by id and never stored (csrc/core/mixture.h).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.ids import chunks_of_both
from ..core.memory import some
from ..core.row import CHUNK, chunks_from, each, each_request, is_bad, max_of, sum_of, vocabulary
from ..core.rows import draft_prob, each_dist, entries
from . import CHOW, CHOW_LOG, ENSEMBLE, LOSSY, OPT, OPT_LOG, TOKEN_V1, TOKEN_V3
from .rule import is_row_rule, is_token_rule, reads_entropy

# Forms of pi. MIXED: of_p * p + of_q * q at ids where q is kept, of_p * p at others. CAPPED:
# max(min(q, of_q * p), of_p * p). UNDECIDED: p or q, depending on their total variation TV, which is not yet known.
MIXED = tl.constexpr(0)
CAPPED = tl.constexpr(1)
UNDECIDED = tl.constexpr(2)
# The row whose entry at an id must reach the threshold for q to be kept there. NOBODY: q is kept everywhere.
NOBODY = tl.constexpr(0)
TARGET = tl.constexpr(1)
DRAFT = tl.constexpr(2)


class Mixture(NamedTuple):
    form: Any
    score_row: Any
    of_p: Any
    of_q: Any
    threshold: Any  # NaN keeps nothing
    confidence_gap: Any  # for UNDECIDED only: pi is q if the gap is at most alpha * TV, else p
    open: Any  # whether pi still lacks a sum over V, which complete() fills in


@triton.jit
def plain(form, score_row, of_p, of_q, threshold):
    """Return a mixture in which nothing is open."""
    return Mixture(form, score_row, of_p, of_q, threshold, of_p.to(tl.float64) * 0, form * 0)


@triton.jit
def is_p(pi):
    return (pi.form == MIXED) & (pi.of_p == 1) & (pi.of_q == 0)


@triton.jit
def is_q(pi):
    return (pi.form == MIXED) & (pi.of_p == 0) & (pi.of_q == 1) & (pi.score_row == NOBODY)


@triton.jit
def hot_of(pi, p, q):
    """Return the only id that pi can give if pi is a one-hot p or q; else -1."""
    return tl.where(is_p(pi), p.hot, tl.where(is_q(pi), q.hot, -1))


@triton.jit
def keeps(pi, of_target, of_draft):
    """Return whether q is kept at ids with these entries."""
    score = tl.where(pi.score_row == TARGET, of_target, of_draft)
    return (pi.score_row == NOBODY) | (score >= pi.threshold)


@triton.jit
def mixed_prob(pi, p, q, kept, inside):
    """Return pi at an id with probabilities p and q. inside: whether the id is in the target's vocabulary. If pi is
    open, the result is a lower bound."""
    y = tl.where(inside, draft_prob(q), 0.0)
    of_p = pi.of_p.to(tl.float64) * p
    of_q = pi.of_q.to(tl.float64)
    mixed = of_p + tl.where(kept, of_q, 0.0) * y
    mixed = tl.where(is_p(pi), p, mixed)
    mixed = tl.where(is_q(pi), y, mixed)
    most = of_q * p
    capped = tl.where(y < most, y, most)
    capped = tl.where(capped < of_p, of_p, capped)
    return tl.where(pi.form == CAPPED, capped, tl.where(pi.form == UNDECIDED, tl.where(p < y, p, y), mixed))


@triton.jit
def weights(pi, z, x, z_q, y, m, minus):
    """Return (m pi - minus q)+ at ids of the target, with entries z and z_q, and probabilities x (p) and y (q). The
    terms of q are combined first, so that nothing cancels if pi is q."""
    mixed = m * pi.of_p * x + tl.where(keeps(pi, z, z_q), m * pi.of_q - minus, -minus) * y
    capped = m * tl.maximum(tl.minimum(y, pi.of_q * x), pi.of_p * x) - minus * y
    return tl.maximum(tl.where(pi.form == CAPPED, capped, mixed), 0.0)


@triton.jit
def each_mixture(pi, S):
    """Return a mixture repeated for each chunk that is read at once. The result has nothing open."""
    return plain(each(pi.form, S), each(pi.score_row, S), each(pi.of_p, S), each(pi.of_q, S), each(pi.threshold, S))


@triton.jit
def column(pi):
    """Return a mixture with a second dimension, for a tile of chunks."""
    return plain(pi.form[:, None], pi.score_row[:, None], pi.of_p[:, None], pi.of_q[:, None], pi.threshold[:, None])


@triton.jit
def inside_target(target, c, S):
    return tl.arange(0, S.WIDTH)[None, :] < (target.V - c * CHUNK)[:, None]


@triton.jit
def mixed_chunk(target, draft, b, p, q, pi, m, minus, c, reads_p, alive, S):
    """Return chunks c of p's row, and the weights (m pi - minus q)+."""
    z, x = entries(target, b, p, c, alive & reads_p, False, S)
    z_q, y = entries(draft, b, q, c, alive & ((minus != 0) | (pi.of_q != 0)), True, S)
    w = weights(column(pi), z, x, z_q, y, m[:, None], minus[:, None])
    return z, tl.where(inside_target(target, c, S) & alive[:, None], w, 0.0)


@triton.jit
def threshold_at(largest, most, share, PROBS: tl.constexpr):
    """Return the smallest entry whose probability is at least `share` of the largest probability; NaN if share is
    NaN."""
    if PROBS:
        least = (share * largest).to(tl.float32)
    else:
        share_or_least = tl.maximum(share, 1e-300, propagate_nan=tl.PropagateNan.ALL)
        least = (most.to(tl.float64) + tl.log(share_or_least)).to(tl.float32)
    return tl.where(share <= 0, -float("inf"), least)


@triton.jit
def confidence_gap_of(rule, of_p, of_q):
    """Return the target's confidence minus the draft's; for the chow rules, 1 - max q or the entropy of q."""
    log = reads_entropy(rule)
    gap = tl.where(log, of_q.entropy, 1 - of_q.largest)
    alone = (rule == CHOW) | (rule == CHOW_LOG)
    return gap - tl.where(alone, 0.0, tl.where(log, of_p.entropy, 1 - of_p.largest))


@triton.jit
def threshold_of(rule, alpha, target, draft, of_p, of_q):
    """Return the smallest entry at which a token rule keeps q: an entry of the draft's row for token_v1, else of the
    target's."""
    by_draft = rule == TOKEN_V1
    reach = (of_p.largest - alpha) / tl.where(by_draft, of_q.largest, of_p.largest)
    share = tl.where(rule == TOKEN_V3, 1 - alpha, reach)
    DRAFT_PROBS: tl.constexpr = draft.PROBS or draft.data is None
    of_draft = threshold_at(of_q.largest, of_q.max, share, DRAFT_PROBS)
    return tl.where(by_draft, of_draft, threshold_at(of_p.largest, of_p.max, share, target.PROBS))


@triton.jit
def make_rule_dist(rule, alpha, target, draft, p, q, of_p, of_q, on):
    """Return pi at a position with valid rows, from the confidences of p and q.

    Every test has the form "keep the draft iff ...", which is false for NaN, so that NaN defers to the target."""
    gap = confidence_gap_of(rule, of_p, of_q)
    rows = on & is_row_rule(rule) & (q.hot < target.V)
    if target.PROBS:
        rows &= of_p.largest > 0
    by_tv = (rule == OPT) | (rule == OPT_LOG)
    kept = rows & tl.where(by_tv, gap <= 0, gap <= alpha)
    undecided = rows & by_tv & (gap > 0) & (gap <= alpha)  # TV is in [0, 1]

    tokens = on & is_token_rule(rule) & (of_p.largest > 0) & (of_q.largest > 0)
    score_row = tl.where(tokens, tl.where(rule == TOKEN_V1, DRAFT, TARGET), NOBODY)
    threshold = threshold_of(rule, alpha, target, draft, of_p, of_q)
    threshold = tl.where(tokens, threshold, -float("inf")).to(tl.float32)

    lossy = on & (rule == LOSSY) & (p.hot < 0)
    ensemble = on & (rule == ENSEMBLE)
    form = tl.where(lossy, CAPPED, tl.where(undecided, UNDECIDED, MIXED))
    if draft.data is None:
        beyond = rows & False
    else:  # q's mass outside the target's vocabulary goes to p
        beyond = tl.where(q.hot >= 0, q.hot >= target.V, vocabulary(draft) > target.V)
    open = tokens | lossy | undecided | ((kept | ensemble) & beyond)
    whole = tokens | kept | undecided
    p_share = tl.where(whole | lossy, 0.0, tl.where(ensemble, alpha, 1.0)).to(tl.float32)
    q_share = tl.where(lossy, 1 / (1 - alpha), tl.where(ensemble, 1 - alpha, tl.where(whole, 1.0, 0.0))).to(tl.float32)
    return Mixture(form.to(tl.int32), score_row.to(tl.int32), p_share, q_share, threshold, gap, open.to(tl.int32))


@triton.jit
def open_pass(target, draft, p, q, pi, first, s, needed, S):
    """Make one pass over both rows from chunk `first` on.

    Return five values: the mass of q that is not kept or is outside the target's vocabulary, sum (p - q / s)+, the
    slope F'(s) and R of open_sum(), and whether a row of probabilities is invalid. For a form of pi that does not need
    one of these, it may be left at 0."""
    t = (1 / s).to(tl.float32)
    t_c, of_q_c, pi_c = each(t, S)[:, None], each(pi.of_q, S)[:, None], column(each_mixture(pi, S))
    p_c, q_c, alive = each_dist(p, S), each_dist(q, S), each(needed, S)
    left = tl.full([S.ROWS], 0.0, tl.float64)
    total = left
    slope = left
    R = left
    bad = tl.full([S.ROWS], 0, tl.int32)
    for begin in range(first, chunks_of_both(target, draft, each_request(S), q_c), S.TOGETHER):
        c = chunks_from(begin, S)
        z, x = entries(target, each_request(S), p_c, c, alive, False, S)
        z_q, y = entries(draft, each_request(S), q_c, c, alive, True, S)
        left += sum_of(tl.where(inside_target(target, c, S) & keeps(pi_c, z, z_q), 0.0, y), S)
        if some(pi.form != MIXED):
            total += sum_of(tl.maximum(x - t_c * y, 0.0), S)
        if some(pi.form == CAPPED):
            slope += sum_of(tl.where(x > t_c * y, x, 0.0), S)
            R += sum_of(tl.maximum(y - of_q_c * x, 0.0), S)
            if target.PROBS:
                bad = tl.maximum(bad, max_of(is_bad(z).to(tl.int32), S))
            if draft.PROBS:
                bad = tl.maximum(bad, max_of(is_bad(z_q).to(tl.int32), S))
    return left, total, slope, R, bad > 0


@triton.jit
def open_sum(target, draft, p, q, pi, needed, S):
    """Return the two sums that pi may lack. The first is the mass of q that is not kept or is outside the target's
    vocabulary. The second is s if pi is CAPPED, TV if it is UNDECIDED.

    CAPPED is max(min(q, c p), s p) with c = of_q. Its s solves F(s) = sum (s p - q)+ - R = 0, where R is
    sum (q - c p)+. F is convex and rises to F(1) >= 0, so Newton's steps descend from 1."""
    CLOSE: tl.constexpr = 2.384185791015625e-07  # relative to R: the error of float32 weights
    MOST_PASSES: tl.constexpr = 64
    capped = pi.form == CAPPED
    beyond_alone = (pi.form == MIXED) & (pi.score_row == NOBODY)
    first = tl.min(tl.where(beyond_alone | ~needed, target.V // CHUNK, 0), 0).to(tl.int32)
    s = tl.full([S.ROWS], 1.0, tl.float64)
    found = s
    left = s
    passes = tl.full([], 0, tl.int32)
    going = needed
    while some(going):
        left, total, slope, R, bad = open_pass(target, draft, p, q, pi, first, s, needed, S)
        passes += 1
        excess = total / (1 / s).to(tl.float32).to(tl.float64) - R
        step = tl.where(excess > 0, s - excess / slope, s)
        found = tl.where(capped, tl.where(R > 0, step, 0.0), total)
        found = tl.where(bad, float("nan"), found)
        going &= capped & ~bad & (R > 0) & (excess > CLOSE * R) & (step < s) & (passes < MOST_PASSES)
        s = tl.where(going, step, s)
    return left, found


@triton.jit
def complete(target, draft, p, q, pi, alpha, needed, S):
    """Return pi with its open sums filled in, where `needed`."""
    form = pi.form
    of_p = pi.of_p
    of_q = pi.of_q
    asks = needed & (pi.open > 0)
    if some(asks):
        left, found = open_sum(target, draft, p, q, pi, asks, S)
        defers = tl.where(form == UNDECIDED, ~(pi.confidence_gap <= alpha * found), found != found)
        p_share = tl.where(form == CAPPED, found, of_p + of_q * left)
        capped = (form == CAPPED) & ~defers
        of_p = tl.where(asks, tl.where(defers, 1.0, p_share).to(tl.float32), of_p)
        of_q = tl.where(asks & defers, 0.0, of_q)
        form = tl.where(asks, tl.where(capped, CAPPED, MIXED), form).to(tl.int32)
    open = tl.where(asks, 0, pi.open)
    return Mixture(form, pi.score_row, of_p, of_q, pi.threshold, pi.confidence_gap, open)

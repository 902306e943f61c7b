# SPDX-License-Identifier: Apache-2.0
"""The law that a rule puts in the place of the target's (csrc/rules/{rule_dist,make_rule_dist,cascade,lossy}.h, csrc/core/mixture.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.row import CHUNK, is_bad
from ..core.pair import chunks_of, draft_chunk, draft_prob, law_chunk, load
from .rule import CHOW, CHOW_LOG, ENSEMBLE, LOSSY, OPT, OPT_LOG, TOKEN_V1, TOKEN_V3, is_of_log, is_row_rule, is_token_rule

# pi = of_p p + of_q q where q is kept, of_p p elsewhere; or max(min(q, of_q p), of_p p); or p or q, which TV will tell.
MIXED = tl.constexpr(0)
CAPPED = tl.constexpr(1)
UNDECIDED = tl.constexpr(2)
# Whose entry tells, reaching the cut, that q is kept there
NOBODY = tl.constexpr(0)
TARGET = tl.constexpr(1)
DRAFT = tl.constexpr(2)


class Pi(NamedTuple):
    form: Any
    ruler: Any
    of_p: Any
    of_q: Any
    cut: Any
    lack: Any  # of confidence, where TV will tell
    open: Any  # of_p lacks what a sum over V will tell, and stands below it


@triton.jit
def is_p(pi):
    return (pi.form == MIXED) & (pi.of_p == 1) & (pi.of_q == 0)


@triton.jit
def is_q(pi):
    return (pi.form == MIXED) & (pi.of_p == 0) & (pi.of_q == 1) & (pi.ruler == NOBODY)


@triton.jit
def kept(pi, of_target, of_draft):
    """Whether q is kept at ids whose entries these are."""
    entry = tl.where(pi.ruler == TARGET, of_target, of_draft)
    return (pi.ruler == NOBODY) | (entry >= pi.cut)


@triton.jit
def cut_at(largest, most, share, PROBS: tl.constexpr):
    """The entry from which on a probability is at least `share` of the largest one; NaN for NaN."""
    if PROBS:
        cut = (share * largest).to(tl.float32)
    else:
        cut = (most.to(tl.float64) + tl.log(tl.maximum(share, 1e-300, propagate_nan=tl.PropagateNan.ALL))).to(tl.float32)
    return tl.where(share <= 0, -float("inf"), cut)


@triton.jit
def make_law(rule, alpha, target, draft, p, q, of_p, of_q, on):
    """pi at a position whose rows are laws, from the confidences of p and q. Every test is written as "keep the draft iff"."""
    log = is_of_log(rule)
    lack = tl.where(log, of_q.entropy, 1 - of_q.largest)
    lack -= tl.where((rule == CHOW) | (rule == CHOW_LOG), 0.0, tl.where(log, of_p.entropy, 1 - of_p.largest))
    rows = on & is_row_rule(rule) & (q.hot < target.V)
    if target.PROBS:
        rows &= of_p.largest > 0
    by_tv = (rule == OPT) | (rule == OPT_LOG)
    keeps = rows & tl.where(by_tv, lack <= 0, lack <= alpha)
    undecided = rows & by_tv & (lack > 0) & (lack <= alpha)  # TV lies in [0, 1]

    tokens = on & is_token_rule(rule) & (of_p.largest > 0) & (of_q.largest > 0)
    by_draft = rule == TOKEN_V1
    share = tl.where(rule == TOKEN_V3, 1 - alpha, (of_p.largest - alpha) / tl.where(by_draft, of_q.largest, of_p.largest))
    cut = cut_at(of_p.largest, of_p.most, share, target.PROBS)
    if draft.rows is None:
        cut = tl.where(by_draft, cut_at(of_q.largest, of_q.most, share, True), cut)
    else:
        cut = tl.where(by_draft, cut_at(of_q.largest, of_q.most, share, draft.PROBS), cut)
    ruler = tl.where(tokens, tl.where(by_draft, DRAFT, TARGET), NOBODY)

    lossy = on & (rule == LOSSY) & (p.hot < 0)
    ensemble = on & (rule == ENSEMBLE)
    form = tl.where(lossy, CAPPED, tl.where(undecided, UNDECIDED, MIXED))
    if draft.rows is None:
        beyond = rows & False
    else:  # what q holds of ids that the target has not is left to p
        beyond = tl.where(q.hot >= 0, q.hot >= target.V, draft.V > target.V)
    open = tokens | lossy | undecided | ((keeps | ensemble) & beyond)
    p_share = tl.where(tokens | lossy | keeps | undecided, 0.0, tl.where(ensemble, alpha, 1.0)).to(tl.float32)
    q_share = tl.where(lossy, 1 / (1 - alpha), tl.where(ensemble, 1 - alpha, tl.where(tokens | keeps | undecided, 1.0, 0.0))).to(tl.float32)
    cut = tl.where(tokens, cut, -float("inf")).to(tl.float32)
    return Pi(form.to(tl.int32), ruler.to(tl.int32), p_share, q_share, cut, lack, open.to(tl.int32))


@triton.jit
def pi_prob(pi, p, q, keeps, inside):
    """pi at an id with these probabilities, of the target's vocabulary where `inside`. Of what is open, no more than pi."""
    y = tl.where(inside, draft_prob(q), 0.0)
    of_p = pi.of_p.to(tl.float64) * p
    of_q = pi.of_q.to(tl.float64)
    mixed = of_p + tl.where(keeps, of_q, 0.0) * y
    mixed = tl.where(is_p(pi), p, mixed)
    mixed = tl.where(is_q(pi), y, mixed)
    most = of_q * p
    capped = tl.where(y < most, y, most)
    capped = tl.where(capped < of_p, of_p, capped)
    return tl.where(pi.form == CAPPED, capped, tl.where(pi.form == UNDECIDED, tl.where(p < y, p, y), mixed))


@triton.jit
def pair_chunk(target, draft, p, q, c, reads_p, reads_q, S):
    """Entries and probabilities of both rows in chunks c."""
    z = load(target, p, c, reads_p, -float("inf"), S)
    z_q, y = draft_chunk(draft, q, c, reads_q, S)
    return z, law_chunk(target, p, z, c, False, S), z_q, y


@triton.jit
def open_sum(target, draft, p, q, pi, S):
    """What is open of pi: the mass of q that is not kept or lies beyond the target's vocabulary; and TV, or the s of lossy's
    max(min(q, c p), s p), where F(s) = sum (s p - q)+ - R = 0 with R = sum (q - c p)+. F is convex and rises to F(1) >= 0, so
    Newton's steps come down from 1."""
    ENOUGH: tl.constexpr = 2.384185791015625e-07  # of R: what float32 weights lose of it anyway
    MOST_PASSES: tl.constexpr = 64
    mixed = pi.form == MIXED
    capped = pi.form == CAPPED
    vocabulary = target.V
    if draft.rows is not None:
        vocabulary = tl.maximum(target.V, draft.V)
    chunks = chunks_of(vocabulary)
    first = tl.where(mixed & (pi.ruler == NOBODY), target.V // CHUNK, 0).to(tl.int32)
    s = tl.full([], 1.0, tl.float64)
    found = s
    left = s
    passes = tl.full([], 0, tl.int32)
    going = passes == 0
    while going:
        t = (1 / s).to(tl.float32)
        total = tl.full([], 0.0, tl.float64)
        slope = total
        R = total
        left = total
        bad = tl.full([], 0, tl.int32)
        for begin in range(first, chunks, S.TOGETHER):
            c = begin + tl.arange(0, S.TOGETHER)
            z, x, z_q, y = pair_chunk(target, draft, p, q, c, True, True, S)
            inside = tl.arange(0, S.WIDTH)[None, :] < (target.V - c * CHUNK)[:, None]
            left += tl.sum(tl.sum(tl.where(inside & kept(pi, z, z_q), 0.0, y), 1).to(tl.float64), 0)
            if ~mixed:
                total += tl.sum(tl.sum(tl.maximum(x - t * y, 0.0), 1).to(tl.float64), 0)
            if capped:
                slope += tl.sum(tl.sum(tl.where(x > t * y, x, 0.0), 1).to(tl.float64), 0)
                R += tl.sum(tl.sum(tl.maximum(y - pi.of_q * x, 0.0), 1).to(tl.float64), 0)
                if target.PROBS:
                    bad = tl.maximum(bad, tl.max(is_bad(z).to(tl.int32), 0))
                if draft.PROBS:
                    bad = tl.maximum(bad, tl.max(is_bad(z_q).to(tl.int32), 0))
        passes += 1
        excess = total / t.to(tl.float64) - R
        step = tl.where(excess > 0, s - excess / slope, s)
        found = tl.where(capped, tl.where(R > 0, step, 0.0), total)
        found = tl.where(bad > 0, float("nan"), found)
        going = capped & (bad == 0) & (R > 0) & (excess > ENOUGH * R) & (step < s) & (passes < MOST_PASSES)
        s = tl.where(going, step, s)
    return left, found


@triton.jit
def complete(target, draft, p, q, pi, alpha, needed, S):
    """pi with what was open of it, where that is needed."""
    form = pi.form
    of_p = pi.of_p
    of_q = pi.of_q
    still = pi.open
    if needed & (pi.open > 0):
        left, found = open_sum(target, draft, p, q, pi, S)
        defers = tl.where(pi.form == UNDECIDED, ~(pi.lack <= alpha * found), found != found)
        of_p = tl.where(defers, 1.0, tl.where(pi.form == CAPPED, found, pi.of_p + pi.of_q * left)).to(tl.float32)
        of_q = tl.where(defers, 0.0, pi.of_q).to(tl.float32)
        form = tl.where((pi.form == CAPPED) & ~defers, CAPPED, MIXED).to(tl.int32)
        still = pi.open * 0
    return Pi(form, pi.ruler, of_p, of_q, pi.cut, pi.lack, still)


@triton.jit
def pi_weights(pi, z, x, z_q, y, m, minus):
    """(m pi - minus q)+ at ids of the target whose entries are z and z_q and probabilities x and y, put together so that nothing
    cancels where pi is q."""
    mixed = m * pi.of_p * x + tl.where(kept(pi, z, z_q), m * pi.of_q - minus, -minus) * y
    capped = m * tl.maximum(tl.minimum(y, pi.of_q * x), pi.of_p * x) - minus * y
    return tl.maximum(tl.where(pi.form == CAPPED, capped, mixed), 0.0)


@triton.jit
def rest_chunk(target, draft, p, q, pi, m, minus, c, S):
    """The weights (m pi - minus q)+ of chunks c, and whether p is no law there."""
    reads_p = ((pi.form == CAPPED) | (pi.of_p != 0) | (pi.ruler == TARGET))
    reads_q = ((minus != 0) | (pi.of_q != 0))
    z, x, z_q, y = pair_chunk(target, draft, p, q, c, reads_p, reads_q, S)
    inside = tl.arange(0, S.WIDTH)[None, :] < (target.V - c * CHUNK)[:, None]
    w = tl.where(inside, pi_weights(pi, z, x, z_q, y, m, minus), 0.0)
    if target.PROBS:
        return w, is_bad(z) & reads_p
    else:
        return w, c < 0

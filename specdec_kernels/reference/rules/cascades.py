# SPDX-License-Identifier: Apache-2.0
"""Speculative cascades (Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding"): pi = T(q, p) in place of
p.

Confidences (maxima, entropies, thresholds) are of the unscaled rows p1, q1; the mixture, TV and eta of the laws as
sampled. Keep iff >=, so a tie keeps the draft and NaN defers. chow_log, diff_log, opt_log: 1 - max replaced by the
entropy.
"""

import numpy as np

from ..law import EPS, SUM_EPS, ratio
from .pair import DEFER, KEEP, Mix


def largest(law):
    """(max, error)."""
    at = int(np.argmax(law.p))
    return law.p[at], law.err[at]


def entropy(law):
    """(H, error): dH = -sum (ln p + 1) dp, and the sum's own rounding."""
    some = law.p > 0
    x = np.log(law.p[some])
    h = float(-(law.p[some] * x).sum())
    return h, float((law.err[some] * (1 + np.abs(x))).sum()) + SUM_EPS * (1 + abs(h) + np.log(len(law.p)))


def row_rule(pair, keep, distance, err):
    mix, apart = KEEP if keep else DEFER, pair.p_err + pair.q_err
    if (np.abs(pair.p - pair.q) <= apart).all():
        return mix._replace(err=apart)  # both answers are the same law
    return mix._replace(margin=ratio(abs(distance), err))


def chow(pair, alpha):
    """Eq. 2: defer iff max q1 < 1 - alpha."""
    m, err = largest(pair.q1)
    return row_rule(pair, m >= 1 - alpha, m - (1 - alpha), err)


def chow_log(pair, alpha):
    h, err = entropy(pair.q1)
    return row_rule(pair, h <= alpha, alpha - h, err)


def diff(pair, alpha):
    """Eq. 5: defer iff max q1 < max p1 - alpha."""
    return by_confidence(pair, alpha, 0.0)


def opt(pair, alpha):
    """Eq. 10: defer iff max q1 < max p1 - alpha TV(p, q)."""
    tv, err = pair.tv()
    return by_confidence(pair, alpha * tv, alpha * err)


def diff_log(pair, alpha):
    return by_entropy(pair, alpha, 0.0)


def opt_log(pair, alpha):
    tv, err = pair.tv()
    return by_entropy(pair, alpha * tv, alpha * err)


def by_confidence(pair, slack, slack_err):
    (mq, q_err), (mp, p_err) = largest(pair.q1), largest(pair.p1)
    return row_rule(pair, mq >= mp - slack, mq - (mp - slack), q_err + p_err + slack_err)


def by_entropy(pair, slack, slack_err):
    (hq, q_err), (hp, p_err) = entropy(pair.q1), entropy(pair.p1)
    return row_rule(pair, hq <= hp + slack, hp + slack - hq, q_err + p_err + slack_err)


def token_v1(pair, alpha):
    """Eq. 13: keep v iff q1(v) >= max p1 - alpha."""
    m, err = largest(pair.p1)
    return token_rule(pair, pair.q1.p, m - alpha, pair.q1.err + err)


def token_v2(pair, alpha):
    """Eq. 14: keep v iff p1(v) >= max p1 - alpha."""
    m, err = largest(pair.p1)
    return token_rule(pair, pair.p1.p, m - alpha, np.where(pair.p1.p == m, 0.0, pair.p1.err + err))


def token_v3(pair, alpha):
    """Eq. 15: keep v iff p1(v) >= (1 - alpha) max p1."""
    m, err = largest(pair.p1)
    return token_rule(pair, pair.p1.p, (1 - alpha) * m, np.where(pair.p1.p == m, 0.0, pair.p1.err + (1 - alpha) * err))


def token_rule(pair, confidence, threshold, err):
    """pi(v) = q(v) [v kept] + eta p(v), eta = sum of q over what is not kept. A token within err of the threshold may
    be kept or not. Ids behind the target's vocabulary are not kept. Mass gathers on what is kept, even where p = q: pi
    lies not between p and q."""
    kept = (confidence >= threshold) & pair.inside
    err = err + np.where(confidence == threshold, 0.0, EPS * abs(threshold))
    open_ = np.abs(confidence - threshold) < err
    eta = pair.q[~kept].sum()
    eta_err = pair.q[open_].sum() + pair.q_err[~kept].sum() + SUM_EPS * eta
    return Mix(eta, kept.astype(float), pair.p * eta_err + np.where(open_, pair.q, 0.0))

# SPDX-License-Identifier: Apache-2.0
"""Speculative cascades (Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding"): pi = T(q, p) in place of
p.

Confidences (maxima, entropies, thresholds) are of the unscaled rows p1, q1; the mixture, TV and eta of the laws as
sampled. Keep iff >=, so a tie keeps the draft and NaN defers. chow_log, diff_log, opt_log: 1 - max replaced by the
entropy.
"""

from functools import singledispatch

import numpy as np

from ..residual import leftover
from .pair import DEFER, KEEP, Mix


def largest(row):
    return row[row.argmax()]


@singledispatch
def entropy(row):
    some = row[row > 0]
    return float(-(some * np.log(some)).sum())


@singledispatch
def tv(pair):
    return leftover(pair.p, pair.q).sum()


@singledispatch
def row_rule(pair, confidence, threshold, slack):
    return KEEP if confidence >= threshold - slack else DEFER


def chow(pair, alpha):
    """Eq. 2: defer iff max q1 < 1 - alpha."""
    return row_rule(pair, largest(pair.q1.p), 1, alpha)


def diff(pair, alpha):
    """Eq. 5: defer iff max q1 < max p1 - alpha."""
    return row_rule(pair, largest(pair.q1.p), largest(pair.p1.p), alpha)


def opt(pair, alpha):
    """Eq. 10: defer iff max q1 < max p1 - alpha TV(p, q)."""
    return row_rule(pair, largest(pair.q1.p), largest(pair.p1.p), alpha * tv(pair))


def chow_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), 0, alpha)


def diff_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), -entropy(pair.p1.p), alpha)


def opt_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), -entropy(pair.p1.p), alpha * tv(pair))


def token_v1(pair, alpha):
    """Eq. 13: keep v iff q1(v) >= max p1 - alpha."""
    return token_rule(pair, pair.q1.p, largest(pair.p1.p) - alpha)


def token_v2(pair, alpha):
    """Eq. 14: keep v iff p1(v) >= max p1 - alpha."""
    return token_rule(pair, pair.p1.p, largest(pair.p1.p) - alpha)


def token_v3(pair, alpha):
    """Eq. 15: keep v iff p1(v) >= (1 - alpha) max p1."""
    return token_rule(pair, pair.p1.p, (1 - alpha) * largest(pair.p1.p))


@singledispatch
def token_rule(pair, confidence, threshold):
    """pi(v) = q(v) [v kept] + eta p(v), eta = sum of q over what is not kept. Ids behind the target's vocabulary are
    not kept. Mass gathers on what is kept, even where p = q: pi lies not between p and q."""
    kept = (confidence >= threshold) & pair.inside
    return Mix(pair.q[~kept].sum(), kept.astype(float))

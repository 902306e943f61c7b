# SPDX-License-Identifier: Apache-2.0
"""Speculative cascades (Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding").

A cascade uses pi = T(q, p) instead of p. Confidences (maxima, entropies, thresholds) are read from the unscaled rows
p1, q1. The mixture, TV and eta are computed from the distributions as sampled. A rule keeps the draft iff its
confidence >= the threshold, so a tie keeps it and NaN defers. chow_log, diff_log and opt_log use the entropy instead of
1 - max.
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
    """Defer iff max q1 < 1 - alpha (Eq. 2)."""
    return row_rule(pair, largest(pair.q1.p), 1, alpha)


def diff(pair, alpha):
    """Defer iff max q1 < max p1 - alpha (Eq. 5)."""
    return row_rule(pair, largest(pair.q1.p), largest(pair.p1.p), alpha)


def opt(pair, alpha):
    """Defer iff max q1 < max p1 - alpha TV(p, q) (Eq. 10)."""
    return row_rule(pair, largest(pair.q1.p), largest(pair.p1.p), alpha * tv(pair))


def chow_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), 0, alpha)


def diff_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), -entropy(pair.p1.p), alpha)


def opt_log(pair, alpha):
    return row_rule(pair, -entropy(pair.q1.p), -entropy(pair.p1.p), alpha * tv(pair))


def token_v1(pair, alpha):
    """Keep v iff q1(v) >= max p1 - alpha (Eq. 13)."""
    return token_rule(pair, pair.q1.p, largest(pair.p1.p) - alpha)


def token_v2(pair, alpha):
    """Keep v iff p1(v) >= max p1 - alpha (Eq. 14)."""
    return token_rule(pair, pair.p1.p, largest(pair.p1.p) - alpha)


def token_v3(pair, alpha):
    """Keep v iff p1(v) >= (1 - alpha) max p1 (Eq. 15)."""
    return token_rule(pair, pair.p1.p, (1 - alpha) * largest(pair.p1.p))


@singledispatch
def token_rule(pair, confidence, threshold):
    """Return pi(v) = q(v) [v kept] + eta p(v), with eta the sum of q over tokens that are not kept.

    Ids beyond the target's vocabulary are not kept. pi concentrates on kept tokens even where p = q, so it does not lie
    between p and q.
    """
    kept = (confidence >= threshold) & pair.inside
    return Mix(pair.q[~kept].sum(), kept.astype(float))

# SPDX-License-Identifier: Apache-2.0
"""Laws between target and draft without a confidence: lossy speculative decoding (Tran-Thien 2023) and the ensemble."""

import math

import numpy as np

from ..law import EPS, SUM_EPS
from .pair import KEEP, Mix

LEVEL = 2.0**-23  # the mass by which an op's search for beta may miss


def ensemble(pair, w):
    """pi = w p + (1 - w) q."""
    return Mix(w, 1 - w, 2 * EPS * (pair.p + pair.q))


def lossy(pair, alpha):
    """Accept with min(1, p / ((1 - alpha) q)), replace by norm((p / beta - q)+): pi = max(min(q, p / (1 - alpha)), p /
    beta)."""
    t, t_err = inverse_beta(pair, alpha)
    if t == 0:
        return KEEP  # p >= (1 - alpha) q everywhere: every draft is accepted
    p, q, most = pair.p, pair.q, 1 / (1 - alpha)
    cut = q > most * p  # pi = p / (1 - alpha): accepted in part
    lifted = t * p > q  # pi = p / beta: filled up by the residual
    edge = t * pair.p_err + pair.q_err + p * t_err
    err = np.where(lifted, p * t_err, 0.0) + np.where(np.abs(t * p - q) <= edge, edge, 0.0) + 2 * EPS * (p + q)
    return Mix(np.where(lifted, t, np.where(cut, most, 0.0)), np.where(lifted | cut, 0.0, 1.0), err)


def inverse_beta(pair, alpha):
    """(1 / beta, its error): the t in [0, 1] with sum (t p - q)+ = R = sum (q - p / (1 - alpha))+, 0 where R = 0.

    The left side is piecewise linear in t; its pieces end at the ratios q / p. Sorted ascending, with P and Q the sums
    of the first n, the root is t = (R + Q) / P for the n whose ratios alone lie below it. (Newton's method from t = 1
    visits only such t, descends, and ends on the same one: what can be done without sorting.)
    """
    most = 1 / (1 - alpha)
    removed = np.maximum(pair.q - most * pair.p, 0.0)
    R = removed.sum()
    some = pair.p > 0
    if not R > 0 or not some.any():
        return 0.0, 0.0
    p, q = pair.p[some], pair.q[some]
    order = np.argsort(q / p, kind="stable")
    p, q = p[order], q[order]
    P, Q = np.cumsum(p), np.cumsum(q)
    t = (R + Q) / P
    following = np.append(q[1:] / p[1:], math.inf)
    n = int(np.argmax(t <= following))  # the first n whose root lies before the next ratio
    t, active = min(t[n], 1.0), P[n]  # R <= TV, so beta >= 1
    errors = np.where(some & (t * pair.p > pair.q), t * pair.p_err + pair.q_err, 0.0).sum()
    errors += np.where(removed > 0, most * pair.p_err + pair.q_err, 0.0).sum() + SUM_EPS * (R + 2 * Q[n])
    return t, (errors + LEVEL) / active + t * 2.0**-21

# SPDX-License-Identifier: Apache-2.0
"""Rules that mix p and q without a confidence: exact, lossy speculative decoding (Tran-Thien 2023), and ensemble."""

import math
from functools import singledispatch

import numpy as np

from .pair import DEFER, KEEP, Mix


def exact(pair):
    return DEFER


@singledispatch
def ensemble(pair, w):
    """Return pi = w p + (1 - w) q."""
    return Mix(w, 1 - w)


@singledispatch
def lossy(pair, alpha):
    """Return pi = max(min(q, p / (1 - alpha)), p / beta).

    A draft is accepted with probability min(1, p / ((1 - alpha) q)). Otherwise a draw from norm((p / beta - q)+)
    replaces it.
    """
    return lifted(pair.p, pair.q, alpha, inverse_beta(pair.p, pair.q, alpha)[0])


def lifted(p, q, alpha, t):
    """Return pi for a given t = 1 / beta."""
    if t == 0:
        return KEEP  # p >= (1 - alpha) q everywhere: every draft is accepted
    most = 1 / (1 - alpha)
    cut = q > most * p  # pi = p / (1 - alpha): accepted with probability < 1
    filled = t * p > q  # pi = p / beta: the residual adds mass
    return Mix(np.where(filled, t, np.where(cut, most, 0.0)), np.where(filled | cut, 0.0, 1.0))


def inverse_beta(p, q, alpha):
    """Return (1 / beta, P, Q).

    t = 1 / beta in [0, 1] solves sum (t p - q)+ = R with R = sum (q - p / (1 - alpha))+; it is 0 if R = 0. The left
    side is piecewise linear in t, and its pieces end at the ratios q / p. Sort the ratios in ascending order, and let P
    and Q be the sums of p and q over the first n entries. The root is t = (R + Q) / P for the n such that exactly the
    first n ratios are below t. (Newton's method from t = 1 needs no sorting: its steps have this form, and they descend
    to the same root.)
    """
    R = np.maximum(q - 1 / (1 - alpha) * p, 0.0).sum()
    some = p > 0
    if not R > 0 or not some.any():
        return 0.0, 0.0, 0.0
    p, q = p[some], q[some]
    order = np.argsort(q / p, kind="stable")
    p, q = p[order], q[order]
    P, Q = np.cumsum(p), np.cumsum(q)
    t = (R + Q) / P
    n = int(np.argmax(t <= np.append(q[1:] / p[1:], math.inf)))  # the first n whose root is below the next ratio
    return min(t[n], 1.0), P[n], Q[n]  # R <= TV, so beta >= 1

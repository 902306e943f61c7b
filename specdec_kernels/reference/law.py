# SPDX-License-Identifier: Apache-2.0
"""A row of logits or probabilities as a distribution in float64 (Law), and steps that several ops share.

@singledispatch functions have a second version in banded/, for rows that carry an error bound.
"""

import math
from functools import singledispatch
from typing import NamedTuple

import numpy as np
import torch

TINY = 2.0**-126  # an op's float32 sums lose weights that are smaller, relative to the row's largest
Q_MAX = 1 + 1e-3  # a larger q is not a probability; between 1 and Q_MAX it is a rounded 1


class Law(NamedTuple):
    p: np.ndarray  # [V] probabilities; without meaning on an invalid row, unless it is `gathered`
    valid: bool  # the whole row can be drawn from
    greedy: bool
    fallback: int  # argmax of the finite entries, 0 if there is none
    gathered: bool = False  # a row of probabilities: a test reads only p(d), so invalid entries elsewhere go unnoticed
    log_p: np.ndarray | None = None  # [V] ln p, for a row of logits; p may underflow for the ids that removals leave
    missing: bool = False  # the index of the row was out of range

    def log(self, v):
        """Return ln p(v)."""
        with np.errstate(divide="ignore"):
            return float(np.log(self.p[v]) if self.log_p is None else self.log_p[v])


def in_float64(t):
    """Convert a tensor of any float dtype to float64 numpy, without loss."""
    return t.detach().to(torch.float64).numpy()


def numpy_rows(t):
    """Return rows [..., V] in float64. All of the reference reads its rows through this function."""
    return in_float64(t)


def per_row(value, n, off):
    """Return a parameter (None, a number or [n]) as n Python numbers; floats are rounded to float32."""
    value = off if value is None else value
    t = torch.as_tensor(value, dtype=torch.float32 if isinstance(value, float) else None, device="cpu")
    return (t.float() if t.is_floating_point() else t).expand(n).tolist()


def argmax_finite(z):
    return int(np.argmax(np.where(np.isfinite(z), z, -np.inf)))


def law_of_logits(z, stats):
    """Return the Law p(v) = exp((z_v - max) * scale - log_norm) if z_v >= cutoff, else 0.

    stats = (scale, cutoff, log_norm, max).
    """
    scale, _, log_norm, _ = stats
    if math.isnan(log_norm):
        return Law(np.zeros(len(z)), False, False, argmax_finite(z))
    if math.isinf(scale):
        return Law(np.eye(1, len(z), int(log_norm))[0], True, True, int(log_norm))
    log_p = log_weights(z, stats) - log_norm
    return Law(np.exp(log_p), True, False, argmax_finite(z), log_p=log_p)


def log_weights(z, stats):
    """Return ln of each id's weight relative to the largest weight; -inf for ids that are not kept."""
    scale, cutoff, _, top = stats
    return np.where(z >= cutoff, (z - top) * scale, -np.inf)


def no_row():
    """Return the Law for an index out of range: invalid, like a row of NaN."""
    return Law(np.zeros(0), False, False, 0, missing=True)


def law_of_probs(row):
    """Return the Law of a row of probabilities. Negative entries count as 0. NaN or +inf makes it invalid."""
    p = np.where(row < math.inf, np.maximum(row, 0.0), math.nan)
    return Law(p, bool(np.isfinite(p).all() and (p > 0).any()), False, argmax_finite(row), gathered=True)


@singledispatch
def widened(row, n):
    """Return the row with n zeros appended."""
    return np.pad(row, (0, n))


def padded(law: Law, wide):
    """Return the Law padded with zeros to width `wide`."""
    n = wide - len(law.p)
    if n == 0:
        return law
    log_p = None if law.log_p is None else np.pad(law.log_p, (0, n), constant_values=-np.inf)
    return law._replace(p=widened(law.p, n), log_p=log_p)


@singledispatch
def positive(row):
    """Return the row with 0 in place of every entry that is not positive, including NaN."""
    return np.where(row > 0, row, 0.0)


@singledispatch
def clean_q(q):
    """Return q for a residual: entries that are not probabilities count as 0, a rounded 1 counts as 1."""
    return np.where((q >= 0) & (q <= Q_MAX), np.minimum(q, 1.0), 0.0)


@singledispatch
def normalised(w):
    """Return norm(w) = w / sum w."""
    return w / w.sum()


def without(p, log_p, gone):
    """Return norm(p without the ids `gone`), all zero if nothing is left.

    If log_p is given, the remaining weights are computed from it, relative to their own largest.
    """
    w = remaining(p, log_p, gone)
    return normalised(w) if w.sum() >= TINY else np.zeros(len(w))


@singledispatch
def remaining(p, log_p, gone):
    """Return the unnormalised weights of the remaining ids."""
    w = p.copy() if log_p is None else np.exp(log_remaining(log_p, gone))
    w[gone] = 0.0
    return w


def log_remaining(log_p, gone):
    x = log_p.copy()
    x[gone] = -np.inf
    return x - (x.max() if x.max() > -np.inf else 0.0)


def draw(w, v):
    """Draw by inverse CDF: the first id with w > 0 and cumsum > v * total; if none, the last id with w > 0."""
    cum = np.cumsum(w)
    hits = np.flatnonzero((w > 0) & (cum > v * cum[-1]))
    return int(hits[0] if len(hits) else np.flatnonzero(w > 0)[-1])

# SPDX-License-Identifier: Apache-2.0
"""One row of logits (or probabilities) as a law in float64, and the two steps every op is made of: a test and a
draw."""

import math
from typing import NamedTuple

import numpy as np
import torch

EPS = 2.0**-24  # half an ulp of float32 at 1
SUM_EPS = 32 * EPS  # a float32 sum over one chunk of a row, relative to its total
TINY = 2.0**-126  # what weighs less, relative to a law's largest id, weighs nothing in an op's sums
Q_MAX = 1 + 1e-3  # above it q is not a probability; between 1 and Q_MAX it is a rounded 1


class Law(NamedTuple):
    p: np.ndarray  # [V] probabilities; only `fallback` is meaningful on an invalid row
    err: np.ndarray  # [V] what a float32 evaluation of p may be off by, absolutely
    valid: bool  # the whole row can be drawn from
    greedy: bool
    fallback: int  # argmax of the finite entries, 0 if there is none
    gathered: bool = False  # a probability row: a test looks at p(d) alone and does not notice the rest
    log_p: np.ndarray | None = None  # [V] of a row of logits: what is left of it may weigh less than a float64 holds
    missing: bool = False  # there is no row

    def log(self, v):
        """ln p(v)."""
        with np.errstate(divide="ignore"):
            return float(np.log(self.p[v]) if self.log_p is None else self.log_p[v])


def numpy_rows(t):
    """A tensor of any float dtype as float64 numpy, without loss."""
    return t.detach().to(torch.float64).numpy()


def per_row(value, n, off):
    """A parameter (None, a number or [n]) as n Python numbers; floats as float32 holds them."""
    value = off if value is None else value
    t = torch.as_tensor(value, dtype=torch.float32 if isinstance(value, float) else None, device="cpu")
    return (t.float() if t.is_floating_point() else t).expand(n).tolist()


def argmax_finite(z):
    return int(np.argmax(np.where(np.isfinite(z), z, -np.inf)))


def law_of_logits(z, stats):
    """p(v) = exp((z_v - max) * scale - log_norm) where z_v >= cutoff, else 0; stats = (scale, cutoff, log_norm, max)"""
    scale, cutoff, log_norm, top = stats
    if math.isnan(log_norm):
        return Law(np.zeros(len(z)), np.zeros(len(z)), False, False, argmax_finite(z))
    if math.isinf(scale):
        return Law(np.eye(1, len(z), int(log_norm))[0], np.zeros(len(z)), True, True, int(log_norm))
    x = np.where(z >= cutoff, (z - top) * scale, -np.inf)
    p = np.exp(x - log_norm)
    return Law(p, p * rounding(x), True, False, argmax_finite(z), log_p=x - log_norm)


def no_row(V):
    """Of a number that names no row: as of a row of NaN."""
    return Law(np.zeros(V), np.zeros(V), False, False, 0, missing=True)


def rounding(x):
    """What a float32 evaluation of exp(x) / sum exp(x) is off by, relatively: exp of a float32 argument, a few ulp plus
    the argument's own rounding; the normaliser adds its share. x: [V], ln of the weights relative to the largest."""
    return EPS * (16 + 2 * np.where(x > -np.inf, np.abs(x), 0.0) + 3 * math.log(len(x)))


def without(p, err, log_p, gone):
    """norm(p without the ids that are gone) and its error; all zero where nothing is left. In logs where there are any:
    what is left is measured from its own largest id."""
    if log_p is None:
        w, w_err = p.copy(), err.copy()
    else:
        x = log_p.copy()
        x[gone] = -np.inf
        x -= x.max() if x.max() > -np.inf else 0.0
        w = np.exp(x)
        w_err = w * rounding(x)
    w[gone] = w_err[gone] = 0.0
    total = w.sum()
    if not total >= TINY:
        return np.zeros_like(w), np.zeros_like(w)
    return w / total, (w_err + w / total * w_err.sum()) / total + w / total * SUM_EPS


def law_of_probs(row):
    """What is negative counts 0; what is not finite is none, and the row no law."""
    p = np.where(row < math.inf, np.maximum(row, 0.0), math.nan)
    return Law(
        p, np.zeros(len(p)), bool(np.isfinite(p).all() and (p > 0).any()), False, argmax_finite(row), gathered=True
    )


def padded(law: Law, wide):
    """A Law with zeros behind its last id."""
    n = wide - len(law.p)
    if n == 0:
        return law
    log_p = None if law.log_p is None else np.pad(law.log_p, (0, n), constant_values=-np.inf)
    return law._replace(p=np.pad(law.p, (0, n)), err=np.pad(law.err, (0, n)), log_p=log_p)


def clean_q(q):
    """q as a residual sees it: what is no probability counts 0, a rounded 1 counts 1."""
    return np.where((q >= 0) & (q <= Q_MAX), np.minimum(q, 1.0), 0.0)


def ratio(distance, err):
    """A distance in units of the error bound; where nothing is rounded nothing can flip."""
    return distance / err if err > 0 else math.inf


def draw(w, v, err):
    """Inverse CDF: the first id with w > 0 and cumsum > v * total; if none, the last id with w > 0. Returns (id,
    margin)."""
    cum = np.cumsum(w)
    total = cum[-1]
    hits = np.flatnonzero((w > 0) & (cum > v * total))
    x = int(hits[0] if len(hits) else np.flatnonzero(w > 0)[-1])
    band = 2 * err.sum() / total + SUM_EPS
    margin = math.inf
    if (w[:x] + err[:x]).any():  # an id below x could have been drawn
        margin = min(margin, abs(v - (cum[x] - w[x]) / total) / band)
    if (w[x + 1 :] + err[x + 1 :]).any():
        margin = min(margin, abs(cum[x] / total - v) / band)
    return x, margin

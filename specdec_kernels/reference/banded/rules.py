# SPDX-License-Identifier: Apache-2.0
"""Error bounds of the rules' distributions, and the margins of rules that choose a whole row."""

import math
from functools import cached_property

import numpy as np

from ..rules import acceptance, cascades, lossy, pair
from .band import EPS, SUM_EPS, Band, band, err_of, plain, value_of

LEVEL = 2.0**-23  # tolerance, in probability mass, of an op's search for beta


def ratio(distance, err):
    """Return a distance in units of the error bound; infinite if there is no error, since nothing can flip."""
    return distance / err if err > 0 else math.inf


class Pair(pair.Pair):
    """A Pair whose rows are Bands."""

    def __init__(self, rows):
        self.__dict__ |= rows.__dict__
        self.p, self.q = band(rows.p), band(rows.q)

    @cached_property
    def unscaled(self):
        return tuple(law._replace(p=band(law.p)) for law in self._unscaled())


class Mix(pair.Mix):
    """A Mix with errors.

    err: the error of pi in addition to those of p and q. margin: the distance of the rule's decision from the opposite
    one, in units of the error bound.
    """

    def __new__(cls, a, b, err=0.0, margin=math.inf):
        mix = super().__new__(cls, a, b)
        mix.err, mix.margin = err, margin
        return mix

    def law(self, rows):
        pi = super().law(rows)
        return Band(pi.value, np.where(rows.inside, pi.err + self.err, 0.0))

    def leftover(self, rows, r=1.0):
        p, q, r, r_err = band(rows.p), band(rows.q), value_of(r), err_of(r)
        x = r * self.a * p.value - (1 - r * self.b) * q.value
        err = r * self.a * p.err + np.abs(1 - r * self.b) * q.err + r * self.err
        err = err + (r_err + EPS * (r < 1)) * self.law(rows).value
        return Band(np.maximum(x, 0.0), np.where(-x > err, 0.0, err))

    def ceded(self, rows):
        b, lost = float(self.b), rows.q[~rows.inside].sum()
        err = self.err + b * rows.p.value * (lost.err + SUM_EPS * lost.value)
        return Mix(self.a + b * lost.value, b, err, self.margin)


@cascades.entropy.register
def _(row: Band):
    """Return H. Its error is that of dH = -sum (ln p + 1) dp, plus the rounding of the sum."""
    some = row.value > 0
    h = cascades.entropy(row.value)
    err = (row.err[some] * (1 + np.abs(np.log(row.value[some])))).sum()
    return Band(h, float(err) + SUM_EPS * (1 + abs(h) + np.log(len(row))))


@cascades.tv.register
def _(rows: Pair):
    tv = plain(cascades.tv)(rows)
    return Band(tv.value, tv.err + SUM_EPS * tv.value)


@cascades.row_rule.register
def _(rows: Pair, confidence, threshold, slack):
    mix, apart = plain(cascades.row_rule)(rows, confidence, threshold, slack), rows.p.err + rows.q.err
    if (np.abs(rows.p.value - rows.q.value) <= apart).all():
        return Mix(mix.a, mix.b, apart)  # both answers give the same distribution
    distance = abs(float(confidence - (threshold - slack)))
    return Mix(mix.a, mix.b, margin=ratio(distance, confidence.err + err_of(threshold) + err_of(slack)))


@cascades.token_rule.register
def _(rows: Pair, confidence, threshold):
    """Return the Mix of a token rule. A token closer to the threshold than the error may or may not be kept."""
    eta, kept = plain(cascades.token_rule)(rows, confidence, threshold)
    err = confidence.err + threshold.err
    if confidence is rows.p1.p:  # the threshold is computed from this row's largest entry
        err = np.where(confidence == cascades.largest(confidence), 0.0, err)
    err = err + np.where(confidence == threshold, 0.0, EPS * abs(threshold.value))
    open_ = np.abs(confidence.value - threshold.value) < err
    eta_err = rows.q.value[open_].sum() + eta.err + SUM_EPS * eta.value
    return Mix(eta.value, kept, rows.p.value * eta_err + np.where(open_, rows.q.value, 0.0))


@lossy.ensemble.register
def _(rows: Pair, w):
    return Mix(w, 1 - w, 2 * EPS * (rows.p.value + rows.q.value))


@lossy.lossy.register
def _(rows: Pair, alpha):
    p, q = rows.p.value, rows.q.value
    t, P, Q = lossy.inverse_beta(p, q, alpha)
    mix = lossy.lifted(p, q, alpha, t)
    if t == 0:
        return Mix(*mix)
    t_err = beta_error(rows, 1 / (1 - alpha), t, P, Q)
    edge = t * rows.p.err + rows.q.err + p * t_err
    err = np.where(t * p > q, p * t_err, 0.0) + np.where(np.abs(t * p - q) <= edge, edge, 0.0) + 2 * EPS * (p + q)
    return Mix(mix.a, mix.b, err)


def beta_error(rows, most, t, P, Q):
    """Return the error of t = 1 / beta: that of both sums and of the search, divided by the slope P, and a rounding."""
    (p, p_err), (q, q_err) = ((x.value, x.err) for x in (rows.p, rows.q))
    removed = np.maximum(q - most * p, 0.0)
    errors = np.where((p > 0) & (t * p > q), t * p_err + q_err, 0.0).sum()
    errors += np.where(removed > 0, most * p_err + q_err, 0.0).sum() + SUM_EPS * (removed.sum() + 2 * Q)
    return (errors + LEVEL) / P + t * 2.0**-21


@acceptance.typical_edge.register
def _(h: Band, eps, delta):
    x = delta * math.exp(-h.value)
    return Band(min(eps, x), x * h.err if x - eps <= x * h.err else 0.0)

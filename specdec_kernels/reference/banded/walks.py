# SPDX-License-Identifier: Apache-2.0
"""Rows and functions of verification with error bounds, and given uniforms that record how close each decision was."""

import math

import numpy as np

from .. import block, chance, sides
from ..kseq_rho import best_rho
from ..law import Q_MAX, log_weights, normalised
from ..race import keys_of, ranked
from ..row_stats import masses, params_of_rows, stats_of_row
from ..rows import SAMPLING_FIELDS
from ..rules import mix_of
from ..tree_rules.kseq import best, residual
from .band import EPS, SUM_EPS, Band, band, err_of, plain, rounding, value_of
from .rules import Mix, Pair, ratio

RHO_LEVEL = 1e-6  # the largest |f(rho)| after an op's search, on the side where f <= 0


class Side(sides.Side):
    """The rows of one side with error bounds. `note` is called with the margin of each cutoff that is computed."""

    note = staticmethod(lambda margin: None)

    def exact(self, row):
        return band(row)

    def of_probs(self, row):
        law = super().of_probs(row)
        return law._replace(p=band(law.p))

    def of_logits(self, z, stats):
        law = super().of_logits(z, stats)
        err = np.zeros(len(z)) if law.log_p is None else law.p * rounding(log_weights(z, stats))
        return law._replace(p=Band(law.p, err))

    def stats_of(self, values, i):
        if self.rows.stats is None:
            self.note(filters_margin(values[i], *next(params_of_rows(1, *self.rows[SAMPLING_FIELDS]))))
        return super().stats_of(values, i)


def filters_margin(z, *params):
    """Return how far top-p and top-n-sigma are from choosing another cutoff, in units of the error bound."""
    return min(top_p_margin(z, *params), top_n_sigma_margin(z, *params))


def top_n_sigma_margin(z, temperature, top_k, top_p, min_p, top_n_sigma):
    """Return how far top-n-sigma is from keeping other entries, in units of the error bound of float64 sums.

    On every backend, a sum over a row is at most 1024 + V / 256 additions deep."""
    finite = z[np.isfinite(z)]
    sigma = float(finite.std()) if len(finite) else 0.0
    if not (top_n_sigma > 0 and sigma > 0):
        return math.inf
    top = float(finite.max())
    variance_err = (
        3 * (1024 + len(z) / 256) * float(((finite - top) ** 2).mean())
    )  # the variance is made of two means, one of them squared
    bound = 2.0**-53 * (abs(top) + top_n_sigma * (4 * sigma + variance_err / (2 * sigma)))
    with np.errstate(over="ignore"):
        after = np.nextafter(finite.astype(np.float32), np.float32(math.inf)).astype(np.float64)
    edges = finite / 2 + after / 2  # a cutoff up to here is rounded to the entry or below
    return float(np.abs(edges - (top - top_n_sigma * sigma)).min()) / bound


def top_p_margin(z, temperature, top_k, top_p, *others):
    """Return how far top-p is from choosing another cutoff, in units of the error bound."""
    scale, cutoff, log_norm, top = stats_of_row(z, temperature, top_k, 1.0, *others)
    if top_p >= 1 or math.isnan(log_norm) or math.isinf(scale):
        return math.inf
    _, mass = masses(z[z >= cutoff], scale, top)
    shares = mass[:-1] / mass[-1]
    nearest = float(np.abs(shares - top_p).min(initial=math.inf))
    return nearest / (EPS * (48 + 5 * math.log(len(z))))


class GivenUniforms(chance.GivenUniforms):
    """Given uniforms. `margin` is the smallest margin of all decisions so far."""

    side = Side

    def __init__(self, tests, final):
        super().__init__(tests, final)
        self.margin = math.inf
        self.side = self.noting_side

    def noting_side(self, rows):
        side = Side(rows)
        side.note = self.note
        return side

    def note(self, margin):
        self.margin = min(self.margin, margin)

    def accepts(self, column, p, q, lenience=1.0):
        u, l = float(self.tests[column]), float(lenience)
        if 0 < q <= Q_MAX:
            err = err_of(p) + u * (l * err_of(q) + float(q) * err_of(lenience))
            self.note(ratio(abs(u * l * min(float(q), 1.0) - float(p)), err))
        return super().accepts(column, float(p), float(q), l)

    def below(self, column, edge, seen=0.0):
        self.note(ratio(abs(float(self.tests[column]) - float(edge)), err_of(edge)))
        return super().below(column, float(edge))

    def reaches(self, x, edge):
        if isinstance(edge, Band) or edge < 1:  # no probability is above an exact 1
            self.note(ratio(abs(float(x) - float(edge)), err_of(x) + err_of(edge)))
        return super().reaches(float(x), float(edge))

    def has_mass(self, w):
        w = band(w).sum()
        if w.value < 2 * w.err:
            self.note(0.0)  # rounding decides whether any mass is left
        return 0 < w.value < math.inf

    def mix(self, pair, rule, alpha):
        mix = mix_of(Pair(pair), rule, alpha)
        mix = mix if isinstance(mix, Mix) else Mix(*mix)
        self.note(mix.margin)
        return mix

    def race(self, law, noise, place=0):
        """Return the id in a place of the race. Note its margin: keys are float64, as in an op, and rounding may swap
        two keys that are neighbours in the order."""
        keys = keys_of(value_of(law.p), law.log_p, *noise)
        x, order = super().race(law._replace(p=value_of(law.p)), noise, place), ranked(keys)
        for here, there in ((place - 1, place), (place, place + 1)):
            if 0 <= here and there < len(order):
                pair = keys[order[[here, there]]]
                sizes = np.abs(pair).sum() + np.abs(np.log(value_of(law.p)[order[[here, there]]] + 1e-300)).sum() + 64
                self.note((pair[0] - pair[1]) / (16 * 2.0**-53 * sizes))
        return x

    def draw(self, w):
        w, err = value_of(w), band(w).err
        x, cum = super().draw(w), np.cumsum(w)
        total = cum[-1]
        edge_err = 2 * err.sum() / total + SUM_EPS
        if (w[:x] + err[:x]).any():  # an id below x could have been drawn
            self.note(abs(self.final - (cum[x] - w[x]) / total) / edge_err)
        if (w[x + 1 :] + err[x + 1 :]).any():
            self.note(abs(cum[x] / total - self.final) / edge_err)
        return x


@block.h.register
def _(r: Band, s):
    if r == 1 and r.err == 0:
        return 1.0
    if not isinstance(s, Band):  # s = 0: a greedy row
        return Band(float(r == 1), math.inf if r.value + r.err >= 1 else 0.0)
    return block.share(s, r) if s.value + 1 - r.value > 0 else Band(1.0, math.inf)


@block.share.register
def _(s: Band, r):
    share, r, r_err = plain(block.share)(s.value, value_of(r)), value_of(r), err_of(r)
    below = s.value + 1 - r
    return Band(share, ((1 - r) * s.err + s.value * r_err) / below**2 if below > 0 else 0.0)


class Rho(Band):
    """rho* with an error bound. high: the highest rho that an op may find. c: p_acc / beta at `high`."""

    def __init__(self, value, err, high, c):
        super().__init__(value, err)
        self.high, self.c = high, c


@best.register
def _(p: Band, q, k):
    """Return rho* as a Rho.

    The error follows from df = -(rho - k (1 - beta)^(k - 1)) dbeta - beta drho. dbeta is at most the sum over ids of
    the error of the smaller of q and p / rho.
    """
    a, b = normalised(p.value), normalised(value_of(q))
    rho, beta, _ = best_rho(a, b, k)
    beta_err = np.where(b < a / rho, err_of(q), p.err / rho).sum()
    f_err = abs(rho - k * (1 - beta) ** (k - 1)) * beta_err
    low, _, _ = best_rho(a, b, k, f_err)
    high, beta_high, p_acc = best_rho(a, b, k, -f_err - RHO_LEVEL)
    return Rho(rho, max(rho - low, high - rho), high, p_acc / beta_high if beta_high > 0 else high)


@residual.register
def _(p: Band, q, rho):
    """Return the residual. Its error includes the difference from the residual at the highest rho."""
    a, b = p.value, value_of(q)
    w, other = residual(a, b, rho.value), np.maximum(a - rho.c * np.minimum(b, a / rho.high), 0.0)
    err = p.err + rho.high * err_of(q)
    return Band(w, np.where(rho.value * b - a > err, 0.0, err) + np.abs(w - other))

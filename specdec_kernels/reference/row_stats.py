# SPDX-License-Identifier: Apache-2.0
"""The four floats that turn a row of logits into a distribution.

The parameters act in this order: temperature, top-n-sigma, min-p, top-k, top-p.
"""

import math

import numpy as np
import torch

from .entries import with_id
from .law import numpy_rows, per_row
from .padded import padded, present
from .rows import first_sampling, rows_of
from .views import seen_rows

FLT_MAX, FLT_MIN = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def row_stats(rows, *, num_rows=None):
    """Return the stats [N, 4] float64 of rows [N, V]: scale, cutoff, log_norm, max."""
    rows = rows_of(rows, draft=True)
    N, n = len(rows.logits), present(num_rows, len(rows.logits))
    rows = seen_rows(rows, n)
    stats = stats_of_rows(numpy_rows(rows.logits[:n]), *first_sampling(rows, n))
    if rows.ids is not None:
        stats = [with_id(*each) for each in zip(stats, rows.ids.numpy())]
    return padded(torch.tensor(stats, dtype=torch.float64, device="cpu").reshape(-1, 4), N, 0)


def stats_of(rows, num_rows=None):
    """Return the stats of rows of logits: those given, or new ones."""
    return row_stats(rows, num_rows=num_rows) if rows.stats is None else rows.stats.double()


def stats_of_rows(rows, *params):
    return [stats_of_row(z, *each) for z, each in zip(rows, params_of_rows(len(rows), *params))]


def params_of_rows(n, *params):
    """Return the sampling parameters of each of n rows, in the order of SAMPLING."""
    return zip(*(per_row(x, n, off) for x, off in zip(params, (1.0, 0, 1.0, 0.0, 0.0), strict=True)))


def stats_of_row(z, temperature, top_k, top_p, min_p, top_n_sigma):
    finite = z[np.isfinite(z)]
    top = float(finite.max(initial=-math.inf)) + 0.0  # -0 and +0 are the same logit, stored as +0
    greedy = temperature < FLT_MIN  # the inverse of a subnormal number may overflow
    scale = math.inf if greedy else float(np.float32(1 / temperature))
    if not len(finite) or np.isnan(z).any() or z.max() == math.inf:
        return scale, -FLT_MAX, math.nan, top
    if greedy:
        return scale, top, float(np.argmax(z)), top

    cutoff = -FLT_MAX
    if top_n_sigma > 0:  # z >= max - n sigma; sigma is the standard deviation of the finite entries
        cutoff = max(cutoff, float(np.float32(max(top - top_n_sigma * finite.std(), -FLT_MAX))))
    if min_p > 0:  # p(v) >= min_p * max p
        cutoff = max(cutoff, float(np.float32(max(top + temperature * math.log(min_p), -FLT_MAX))))
    if 0 < top_k < len(z):  # the k-th largest; ties are kept
        cutoff = max(cutoff, float(np.partition(z, -top_k)[-top_k]))
    if top_p < 1:  # the largest c with mass{z >= c} >= top_p * total
        values, mass = masses(z[z >= cutoff], scale, top)
        cutoff = float(values[np.argmax(mass >= top_p * mass[-1])])
    log_norm = math.log(np.exp((z[z >= cutoff] - top) * scale).sum())
    return scale, cutoff + 0.0, log_norm, top


def masses(z, scale, top):
    """Return the distinct values c of z, largest first, and mass{z >= c} for each."""
    values, counts = np.unique(z, return_counts=True)
    values = values[::-1]
    return values, np.cumsum(counts[::-1] * np.exp((values - top) * scale))

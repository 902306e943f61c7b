# SPDX-License-Identifier: Apache-2.0
"""The four floats that turn a row of logits into a law (algorithms: temperature, then min-p, top-k, top-p)."""

import math

import numpy as np
import torch

from .law import EPS, numpy_rows, per_row
from .padded import padded, present
from .rows import first_sampling, rows_of

FLT_MAX, FLT_MIN = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def row_stats(rows, *, num_rows=None):
    """[N, V] -> [N, 4] float64: scale, cutoff, log_norm, max."""
    rows = rows_of(rows)
    n = present(num_rows, len(rows.logits))
    stats, _ = stats_and_slack(numpy_rows(rows.logits[:n]), *first_sampling(rows, n))
    return padded(torch.tensor(stats, dtype=torch.float64, device="cpu").reshape(-1, 4), len(rows.logits), 0)


def stats_of(rows, num_rows=None):
    """The stats of rows of logits, given or made."""
    return row_stats(rows, num_rows=num_rows) if rows.stats is None else rows.stats.double()


def stats_and_slack(rows, temperature, top_k, top_p, min_p):
    """Per row the four floats, and how far top-p was from another cutoff (in float32 error bounds)."""
    n = len(rows)
    columns = zip(per_row(temperature, n, 1.0), per_row(top_k, n, 0), per_row(top_p, n, 1.0), per_row(min_p, n, 0.0))
    pairs = [stats_of_row(z, *c) for z, c in zip(rows, columns)]
    return [stats for stats, _ in pairs], [slack for _, slack in pairs]


def stats_of_row(z, temperature, top_k, top_p, min_p):
    finite = z[np.isfinite(z)]
    top = float(finite.max(initial=-math.inf)) + 0.0  # -0 and +0 are one logit, and stand as +0 in a law
    greedy = temperature < FLT_MIN  # the inverse of a subnormal number would overflow
    scale = math.inf if greedy else float(np.float32(1 / temperature))
    if not len(finite) or np.isnan(z).any() or z.max() == math.inf:
        return (scale, -FLT_MAX, math.nan, top), math.inf
    if greedy:
        return (scale, top, float(np.argmax(z)), top), math.inf

    cutoff, slack = -FLT_MAX, math.inf
    if min_p > 0:  # p(v) >= min_p * max p
        cutoff = max(cutoff, float(np.float32(max(top + temperature * math.log(min_p), -FLT_MAX))))
    if 0 < top_k < len(z):  # the k-th largest of what is left; ties stay
        cutoff = max(cutoff, float(np.partition(z, -top_k)[-top_k]))
    if top_p < 1:  # the largest c with mass{z >= c} >= top_p * total
        values, counts = np.unique(z[z >= cutoff], return_counts=True)
        x = (values[::-1] - top) * scale
        mass = np.cumsum(counts[::-1] * np.exp(x))
        share = mass / mass[-1]
        cutoff = float(values[::-1][np.argmax(mass >= top_p * mass[-1])])
        if len(share) > 1:
            slack = float(np.abs(share[:-1] - top_p).min()) / (EPS * (48 + 5 * math.log(len(z))))
    log_norm = math.log(np.exp((z[z >= cutoff] - top) * scale).sum())
    return (scale, cutoff + 0.0, log_norm, top), slack

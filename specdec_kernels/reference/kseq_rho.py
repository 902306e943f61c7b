# SPDX-License-Identifier: Apache-2.0
"""The best rho of K-SEQ selection (Sun et al. 2023, "SpecTr"; in the paper p is the draft and q the target)."""

import math
from typing import NamedTuple

import numpy as np
import torch

from ..registry import ROW_KINDS
from .law import clean_q, positive
from .row_stats import stats_of
from .rows import Rows, rows_of
from .sides import Side


class KseqRho(NamedTuple):
    rho: torch.Tensor  # [N] float64, in [1, k]
    beta: torch.Tensor  # [N] float64, sum min(q, p / rho): probability that one draft is accepted
    p_acc: torch.Tensor  # [N] float64, 1 - (1 - beta)^k: probability that one of k drafts is accepted


def kseq_rho(p, q, k):
    """Find the best rho of p [N, V], q [N, Vq] and k (an int or [N]) -> rho*, beta, p_acc, each [N].

    A pair with an invalid row gives rho = k, which is valid for every pair of distributions, and beta = p_acc = NaN.
    """
    ks = torch.as_tensor(k, device="cpu").expand(len(rows_of(p, seen=False).logits)).tolist()
    if any(n < 1 for n in ks):
        raise ValueError(f"kseq_rho: k must be >= 1, got {min(ks)}")
    out = [rho_of_laws(*pair) for pair in zip(*laws("kseq_rho", p, q), ks)]
    return KseqRho(*torch.tensor(out, dtype=torch.float64, device="cpu").reshape(-1, 3).T)


def laws(op, p, q):
    """Return the Laws of p's rows and those of q's rows."""
    found = []
    for name, rows in (("p", rows_of(p, seen=False)), ("q", rows_of(q, seen=False, draft=True))):
        if rows.kind not in ROW_KINDS:
            raise ValueError(f"{op}: {name}.kind must be 'logits' or 'probs', got {rows.kind!r}")
        if rows.kind == "logits":
            rows = Rows(rows.logits, stats=stats_of(rows), ids=rows.ids)
        found.append([*map(Side(rows).law(), range(len(rows.logits)))])
    return found


def rho_of_laws(p, q, k):
    if not (p.valid and q.valid):
        return float(k), math.nan, math.nan
    wide = max(len(p.p), len(q.p))
    a, b = np.zeros(wide), np.zeros(wide)
    a[: len(p.p)], b[: len(q.p)] = positive(p.p), clean_q(q.p)
    return best_rho(a / a.sum(), b / b.sum(), k) if b.any() else (float(k), math.nan, math.nan)


def beta_of(p, q, rho):
    return np.minimum(q, p / rho).sum()


def excess(p, q, k, rho):
    """Return f(rho) = 1 - (1 - beta)^k - rho * beta. The residual p - c min(q, p / rho) is nowhere negative iff f <= 0.

    f has two equal forms, and the one without cancellation is used. If rho * beta is small, that is the form above.
    Otherwise it is D - (1 - beta)^k with D = sum (p - rho q)+ = 1 - rho * beta. Both terms of this form are tiny if p
    is close to q or k is large.
    """
    beta = beta_of(p, q, rho)
    if rho * beta < 0.5:
        return -math.expm1(k * math.log1p(-beta)) - rho * beta
    rejected = 1 - beta if beta < 0.5 else np.maximum(q - p / rho, 0.0).sum()
    return np.maximum(p - rho * q, 0.0).sum() - rejected**k


def best_rho(p, q, k, level=0.0):
    """Find the smallest rho in [1, k] with f(rho) <= level by bisection -> (rho, beta, p_acc).

    p, q: two distributions of one width. f never rises with rho, and f(1) >= 0 >= f(k). Between neighbouring ratios
    p(x) / q(x), beta is a + b / rho, so f is smooth there. The piece with the crossing is found among the sorted
    ratios. The crossing in it is found by halving down to two neighbouring floats. The upper one is returned, so that
    f <= level holds there. If it holds at no edge, or for disjoint distributions (beta = 0), rho = k.
    """
    if beta_of(p, q, 1.0) == 0:
        return float(k), 0.0, 0.0
    inside = np.unique(p[q > 0] / q[q > 0])
    inside = inside[(inside > 1) & (inside < k)]
    edges = [1.0, *inside.tolist(), float(k)]
    low, high = 0, len(edges) - 1  # the first edge with f <= level, the last one if there is none
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(p, q, k, edges[middle]) <= level else (middle + 1, high)
    rho = edges[high]
    if high > 0:
        below = edges[high - 1]
        while below < (middle := below + (rho - below) / 2) < rho:
            below, rho = (below, middle) if excess(p, q, k, middle) <= level else (middle, rho)
    beta = beta_of(p, q, rho)
    return rho, beta, -math.expm1(k * math.log1p(-beta)) if beta < 1 else 1.0

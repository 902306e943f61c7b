# SPDX-License-Identifier: Apache-2.0
"""TV and overlap of a target's and a draft's row, and the confidences that cascades use (Narasimhan et al. 2024)."""

import math

import torch

from .kseq_rho import laws
from .law import padded
from .residual import leftover
from .rules.cascades import entropy, largest
from .rules.pair import Pair


def row_gap(p, q):
    """Return [N, 6] float64 of p [N, V] and q [N, Vq]: TV, overlap, H(p), H(q), max p, max q.

    TV = sum (p - q)+ and overlap = sum min(p, q). Values that depend on an invalid row are NaN.
    """
    out = [gap(*pair) for pair in zip(*laws("row_gap", p, q))]
    return torch.tensor(out, dtype=torch.float64, device="cpu").reshape(-1, 6)


def gap(p, q):
    wide = max(len(p.p), len(q.p))
    pair = Pair(padded(p, wide), padded(q, wide))
    p, q = (law._replace(p=row) for law, row in ((pair.target, pair.p), (pair.draft, pair.q)))
    tv, overlap = (leftover(p.p, q.p).sum(), p.p.clip(max=q.p).sum()) if p.valid and q.valid else (math.nan, math.nan)
    (hp, mp), (hq, mq) = ((entropy(x.p), largest(x.p)) if x.valid else (math.nan, math.nan) for x in (p, q))
    return tv, overlap, hp, hq, mp, mq

# SPDX-License-Identifier: Apache-2.0
"""The residual norm((p - q)+): the distribution of the token that replaces a rejected draft."""

from functools import singledispatch

import numpy as np
import torch

from .law import argmax_finite, clean_q, numpy_rows, positive
from .padded import padded, present


def residual(p, q, *, num_rows=None):
    """Return (probs [N, V], mass [N]), norm((p - q)+) and sum (p - q)+, of p [N, V] and q [N, Vq] or ids [N]."""
    (N, V), n = p.shape, present(num_rows, len(p))
    p, q = p[:n], q[:n]
    pairs = [residual_row(a, b) for a, b in zip(numpy_rows(p), numpy_rows(q) if q.is_floating_point() else q.tolist())]
    probs = torch.from_numpy(np.array([row for row, _ in pairs]).reshape(n, V))
    return padded(probs, N, 0), padded(
        torch.tensor([mass for _, mass in pairs], dtype=torch.float64, device="cpu"), N, 0
    )


def residual_weights(p, q):
    """Return (p - q)+ of one row p. q: a row of any width (missing ids have q = 0), or one drafted id (-1: none)."""
    w = positive(p)
    if np.ndim(q) == 0:
        if 0 <= q < len(w):
            w[q] = 0.0
        return w
    n = min(len(w), len(q))
    w[:n] = np.maximum(w[:n] - clean_q(q[:n]), 0.0)
    return w


def residual_row(p, q):
    if not (p < np.inf).all():  # NaN or +inf
        return np.eye(1, len(p), argmax_finite(p))[0], np.nan
    w = residual_weights(p, q)
    for candidate in (w, positive(p)):
        if candidate.sum() > 0:
            return candidate / candidate.sum(), w.sum()
    return np.eye(1, len(p), argmax_finite(p))[0], w.sum()


@singledispatch
def leftover(p, q):
    """Return (p - q)+ of two rows of one width."""
    return np.maximum(p - q, 0.0)

# SPDX-License-Identifier: Apache-2.0
"""The acceptance test (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)."""

import torch

from .law import Q_MAX, numpy_rows
from .uniforms import given


def accepts(p, q, u):
    """Accept with probability min(1, p/q). Strict and without a division: p = 0 is never accepted, NaN compares
    false."""
    return 0 < q <= Q_MAX and u * min(q, 1.0) < p


def accept(p, q, u):
    """p, q [...] probabilities of the drafted token (or q integer ids: one-hot drafts), u [...] uniforms -> bool
    [...]."""
    q_rows = numpy_rows(q if q.is_floating_point() else (q >= 0))
    out = [accepts(*each) for each in zip(numpy_rows(p).ravel(), q_rows.ravel(), given(numpy_rows(u)).ravel())]
    return torch.tensor(out, dtype=torch.bool, device="cpu").reshape(p.shape)

# SPDX-License-Identifier: Apache-2.0
"""The acceptance test (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2)."""

import torch

from .law import Q_MAX, in_float64
from .uniforms import given


def accepts(p, q, u):
    """Return whether the uniform u accepts. For q in (0, 1] the probability of that is min(1, p / q).

    The comparison is strict and has no division: p = 0 is never accepted, and NaN compares false.
    """
    return 0 < q <= Q_MAX and u * min(q, 1.0) < p


def accept(p, q, u):
    """Test drafted tokens -> bool [...].

    p, q [...]: probabilities of the drafted token (q of integer ids: one-hot drafts). u [...]: uniforms.
    """
    q_rows = in_float64(q if q.is_floating_point() else (q >= 0))
    out = [accepts(*each) for each in zip(in_float64(p).ravel(), q_rows.ravel(), given(in_float64(u)).ravel())]
    return torch.tensor(out, dtype=torch.bool, device="cpu").reshape(p.shape)

# SPDX-License-Identifier: Apache-2.0
"""Tests of the enumerated distributions that other tests compare with."""

import numpy as np
import pytest
from support.tree_laws import random_rows

from specdec_kernels import testing
from specdec_kernels.reference import chain_law

P = np.array([0.4, 0.3, 0.2, 0.1])
Q = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("gamma", [0, 1, 3])
@pytest.mark.parametrize("draft", ["same width", "narrower", "wider", "one-hot"])
def test_speculative_sampling_is_lossless(gamma, draft):
    p = random_rows(1, 4)
    q = {"same width": random_rows(2, 4), "narrower": random_rows(2, 2), "wider": random_rows(2, 6)}.get(
        draft, lambda prefix: sum(prefix) % 4
    )
    law = chain_law(p, q, gamma)
    assert abs(sum(law.values()) - 1) < 1e-12
    full, target = testing.complete_law(law, p, gamma + 1), testing.enumerate_law(p, gamma + 1)
    assert max(abs(full.get(t, 0) - m) for t, m in target.items()) < 1e-14


def test_a_lossy_law_is_not_called_lossless():
    """With p in place of the residual (p - q)+, the completed distribution differs from the target's."""
    kept = np.minimum(P, Q)
    lossy = kept + (1 - kept.sum()) * P
    assert np.abs(lossy - P).max() > 0.05

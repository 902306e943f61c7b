# SPDX-License-Identifier: Apache-2.0
"""The tools the other tests rest on."""

import numpy as np
import pytest
from support import laws

P = np.array([0.4, 0.3, 0.2, 0.1])
Q = np.array([0.1, 0.2, 0.3, 0.4])


def random_rows(seed, vocab):
    """Rows that depend on the whole prefix."""
    table = {}

    def row(prefix):
        if prefix not in table:
            table[prefix] = np.random.default_rng([seed, len(prefix), *prefix]).dirichlet(np.full(vocab, 0.7))
        return table[prefix]

    return row


@pytest.mark.parametrize("gamma", [0, 1, 3])
@pytest.mark.parametrize("draft", ["same width", "narrower", "wider", "one-hot"])
def test_speculative_sampling_is_lossless(gamma, draft):
    p = random_rows(1, 4)
    q = {"same width": random_rows(2, 4), "narrower": random_rows(2, 2), "wider": random_rows(2, 6)}.get(
        draft, lambda prefix: sum(prefix) % 4
    )
    law = laws.chain_law(p, q, gamma)
    assert abs(sum(law.values()) - 1) < 1e-12
    full, target = laws.complete(law, p, gamma + 1), laws.joint(p, gamma + 1)
    assert max(abs(full.get(t, 0) - m) for t, m in target.items()) < 1e-14


def test_a_lossy_law_is_not_called_lossless():
    """The residual (p - q)+ replaced by p: the completed law moves away from the target's."""
    kept = np.minimum(P, Q)
    lossy = kept + (1 - kept.sum()) * P
    assert np.abs(lossy - P).max() > 0.05


def test_chi_square_accepts_the_law_and_detects_what_it_says():
    rng = np.random.default_rng(0)
    n, probabilities = 1_000_000, random_rows(3, 200)(())
    right = laws.chi_square(rng.multinomial(n, probabilities), probabilities)
    assert right.passed and right.cells > 100
    w = 2 * right.detects
    biased = probabilities * (1 + w * rng.choice([-1, 1], 200))
    biased /= biased.sum()
    assert not laws.chi_square(rng.multinomial(n, biased), probabilities).passed
    assert 0.001 < right.detects < 0.01


def test_chi_square_fails_on_the_impossible():
    assert not laws.chi_square([500_000, 499_999, 1], [0.5, 0.5, 0.0]).passed


def test_compare_counts_outcomes_of_every_length():
    law = {(0,): 0.25, (1, 0): 0.25, (1, 1): 0.5}
    tokens = np.array([[0, -1], [1, 0], [1, 1], [1, 1]] * 1000)
    assert laws.compare_with_law(tokens, law, 2).statistic == 0
    assert not laws.compare_with_law(np.array([[0, -1], [1, 0]] * 2000), law, 2).passed

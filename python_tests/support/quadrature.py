# SPDX-License-Identifier: Apache-2.0
"""Draws with stratified uniforms, which locate the edges of a CDF without a random number."""

import numpy as np


def strata(n):
    """Return n stratified uniforms. Counting hits locates an edge of a CDF to 1/n."""
    return (np.arange(n) + 0.5) / n


def assert_quadrature(tokens, law, what, slack=1e-5):
    """Check that tokens drawn with strata(n) hit every id n * p(id) times, up to one stratum, and float32 errors."""
    n = len(tokens)
    share = np.bincount(tokens, minlength=len(law)) / n
    assert len(share) == len(law), f"{what}: a token outside the vocabulary"
    assert np.abs(share - law).max() <= 1 / n + slack, f"{what}: frequencies {share}, law {law}"

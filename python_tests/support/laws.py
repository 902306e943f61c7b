# SPDX-License-Identifier: Apache-2.0
"""Laws of emitted tokens completed to the target's, and the statistics that compare draws with exact laws."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy import stats

from specdec_kernels.reference.chain_law import chain_law

__all__ = ["chain_law", "chi_square", "compare_with_law", "complete", "joint"]

P_VALUE = 1e-6  # a right op fails a chi-square here once in a million runs


def joint(p, length):
    """The target's own law of its first `length` tokens: {tokens: probability}."""
    law = {(): 1.0}
    for _ in range(length):
        law = {t + (y,): m * float(w) for t, m in law.items() for y, w in enumerate(p(t)) if w > 0}
    return law


def complete(law, p, length):
    """Emitted tokens continued by plain target sampling to `length` tokens. Lossless means: equal to joint(p,
    length)."""
    full = defaultdict(float)
    for tokens, mass in law.items():
        if len(tokens) >= length:
            full[tokens[:length]] += mass
            continue
        tails = joint(lambda t, head=tokens: p(head + t), length - len(tokens))
        for tail, m in tails.items():
            full[tokens + tail] += mass * m
    return dict(full)


class ChiSquare(NamedTuple):
    p_value: float
    statistic: float
    cells: int
    detects: float  # total variation of a bias spread over all cells that is caught 99 times in 100

    @property
    def passed(self):
        return self.p_value >= P_VALUE


def chi_square(counts, probabilities, smallest=10.0):
    """counts, probabilities: [cells]. Cells with fewer than `smallest` expected draws are pooled; draws where the law
    has no mass at all are a failure outright."""
    counts, probabilities = np.asarray(counts, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    n = counts.sum()
    assert abs(probabilities.sum() - 1) < 1e-6, f"the law sums to {probabilities.sum()}"
    if counts[probabilities == 0].any():
        return ChiSquare(0.0, np.inf, 0, 0.0)
    expected = n * probabilities
    small = expected < smallest
    observed = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] < smallest:  # too few to make a cell of their own: they join the smallest of the others
        at = expected[:-1].argmin()
        observed[at] += observed[-1]
        expected[at] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    freedom = len(expected) - 1
    if freedom == 0:
        return ChiSquare(1.0, 0.0, 1, 1.0)
    statistic = ((observed - expected) ** 2 / expected).sum()
    return ChiSquare(float(stats.chi2.sf(statistic, freedom)), float(statistic), len(expected), detectable(freedom, n))


def detectable(freedom, n):
    """The bias found with 99% power: every cell off by a factor 1 +- w has total variation w / 2 and noncentrality n
    w^2."""
    critical = stats.chi2.isf(P_VALUE, freedom)
    low, high = 0.0, 100.0 * (critical + 100)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if stats.ncx2.sf(critical, freedom, middle) > 0.99 else (middle, high)
    return float(np.sqrt(high / n) / 2)


def codes(tokens, base):
    """[N, L] token rows (pads -1) as one integer each, so that outcomes can be counted."""
    code = np.zeros(len(tokens), dtype=np.int64)
    for column in np.asarray(tokens).T:
        code = code * (base + 1) + column + 1
    return code


def compare_with_law(tokens, law, base):
    """chi_square of emitted rows tokens [N, L] (pads -1) against {tokens: probability}."""
    length = tokens.shape[1]
    outcomes = sorted(law)
    known = codes(np.array([t + (-1,) * (length - len(t)) for t in outcomes]), base)
    seen, counts = np.unique(codes(tokens, base), return_counts=True)
    every = np.union1d(known, seen)
    count, mass = np.zeros(len(every)), np.zeros(len(every))
    count[np.searchsorted(every, seen)] = counts
    mass[np.searchsorted(every, known)] = [law[t] for t in outcomes]
    return chi_square(count, mass)


def strata(n):
    """n stratified uniforms: counting hits locates an edge of a CDF to 1/n."""
    return (np.arange(n) + 0.5) / n


def assert_quadrature(tokens, law, what, slack=1e-5):
    """Tokens drawn with strata(n) hit every id n * law times, up to one stratum at each of its two edges."""
    n = len(tokens)
    share = np.bincount(tokens, minlength=len(law)) / n
    assert len(share) == len(law), f"{what}: a token outside the vocabulary"
    assert np.abs(share - law).max() <= 1 / n + slack, f"{what}: frequencies {share}, law {law}"

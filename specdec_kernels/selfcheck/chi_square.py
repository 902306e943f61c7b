# SPDX-License-Identifier: Apache-2.0
"""The statistics of selfcheck: counted outcomes against their law."""

import math
from typing import NamedTuple

import torch

P_VALUE = 1e-6  # right ops fail one run in a million


class Row(NamedTuple):
    check: str
    finds: str  # what would not pass
    statistic: str
    passed: bool


class ChiSquare(NamedTuple):
    p_value: float
    statistic: float
    cells: int
    detects: float  # total variation found 99 times in 100


def chi_square(counts, law, smallest=10.0):
    """counts, law: {outcome: number}; outcomes expected less than `smallest` times share a cell."""
    n = sum(counts.values())
    if any(law.get(x, 0) == 0 for x in counts):
        return ChiSquare(0.0, math.inf, len(counts), 0.0)
    pairs = [(counts.get(x, 0), n * mass) for x, mass in law.items()]
    small = [pair for pair in pairs if pair[1] < smallest]
    pairs = sorted((pair for pair in pairs if pair[1] >= smallest), key=lambda pair: pair[1])
    if small:
        if sum(e for _, e in small) < smallest:  # too few for a cell of their own: they join the smallest of the others
            small.append(pairs.pop(0))
        pairs.append((sum(o for o, _ in small), sum(e for _, e in small)))
    statistic, freedom = sum((o - e) ** 2 / e for o, e in pairs), len(pairs) - 1
    # Power .99 in the normal approximation: critical value and noncentral mean lie 2.33 standard deviations apart.
    critical, noncentral = freedom + 4.75 * math.sqrt(2 * freedom) + 15, 0.0
    while freedom + noncentral - 2.33 * math.sqrt(2 * freedom + 4 * noncentral) < critical:
        noncentral += 1.0
    tail = torch.special.gammaincc(
        torch.tensor(freedom / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64)
    )
    return ChiSquare(float(tail), statistic, len(pairs), math.sqrt(noncentral / n) / 2)


def outcomes(rows):
    """[N, L] token rows (ids below 255, pads -1) -> {tokens: count}."""
    code = sum((rows[:, i] + 1) << (8 * i) for i in range(rows.shape[1]))
    distinct, counts = (x.tolist() for x in torch.unique(code.cpu(), return_counts=True))
    return {tuple(t - 1 for t in c.to_bytes(rows.shape[1], "little") if t): n for c, n in zip(distinct, counts)}


def law_row(name, result):
    statistic = f"chi-square {result.statistic:.1f} on {result.cells} cells, p = {result.p_value:.2g}"
    return Row(name, f"a bias of {result.detects:.4f} in total variation", statistic, result.p_value >= P_VALUE)

# SPDX-License-Identifier: Apache-2.0
"""Statistics shared by the checks: counts against a distribution, and results against the float64 reference."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

P_VALUE = 1e-6  # correct ops fail a check once in a million runs


class Finding(NamedTuple):
    purpose: str  # what the check would detect, in words
    statistic: str
    passed: bool


Check = Callable[..., Finding]  # called with (sk, device, seed)


class ChiSquare(NamedTuple):
    p_value: float
    statistic: float
    cells: int
    detects: float  # total variation that is detected with probability .99


def chi_square(counts, law, smallest=10.0):
    """Test counts {outcome: number} against law {outcome: probability}.

    Outcomes expected less than `smallest` times share a cell.
    """
    n = sum(counts.values())
    if any(law.get(x, 0) == 0 for x in counts):
        return ChiSquare(0.0, math.inf, len(counts), 0.0)
    pairs = [(counts.get(x, 0), n * mass) for x, mass in law.items()]
    small = [pair for pair in pairs if pair[1] < smallest]
    pairs = sorted((pair for pair in pairs if pair[1] >= smallest), key=lambda pair: pair[1])
    if small:
        if sum(e for _, e in small) < smallest:  # too few for a separate cell: join the smallest other
            small.append(pairs.pop(0))
        pairs.append((sum(o for o, _ in small), sum(e for _, e in small)))
    statistic, freedom = sum((o - e) ** 2 / e for o, e in pairs), len(pairs) - 1
    # Power .99 in the normal approximation: the noncentral mean is 2.33 standard deviations above the critical value.
    critical, noncentral = freedom + 4.75 * math.sqrt(2 * freedom) + 15, 0.0
    while freedom + noncentral - 2.33 * math.sqrt(2 * freedom + 4 * noncentral) < critical:
        noncentral += 1.0
    tail = torch.special.gammaincc(
        torch.tensor(freedom / 2, dtype=torch.float64, device="cpu"),
        torch.tensor(statistic / 2, dtype=torch.float64, device="cpu"),
    )
    return ChiSquare(float(tail), statistic, len(pairs), math.sqrt(noncentral / n) / 2)


def outcomes(rows):
    """Count token rows [N, L] (ids below 255, padding -1) -> {tokens: count}."""
    code = sum((rows[:, i] + 1) << (8 * i) for i in range(rows.shape[1]))
    distinct, counts = (x.tolist() for x in torch.unique(code.cpu(), return_counts=True))
    return {tuple(t - 1 for t in c.to_bytes(rows.shape[1], "little") if t): n for c, n in zip(distinct, counts)}


def follows(result: ChiSquare) -> Finding:
    statistic = f"chi-square {result.statistic:.1f} on {result.cells} cells, p = {result.p_value:.2g}"
    return Finding(
        f"would detect a bias of {result.detects:.4f} in total variation", statistic, result.p_value >= P_VALUE
    )


def does_not_follow(result: ChiSquare) -> Finding:
    """Return the finding of a control, whose input is wrong on purpose: the chi-square must notice it."""
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Finding("the input is wrong on purpose, and the test must notice it", statistic, result.p_value < P_VALUE)


class Agreement:
    """Comparison of results with the float64 reference for the same uniforms.

    They must be equal wherever rounding cannot change the result.
    """

    def __init__(self, *fields: str):
        self.fields, self.requests, self.wrong, self.close = fields, 0, 0, 0

    def add(self, out, ref) -> None:
        pairs = [(getattr(out, name).cpu(), getattr(ref, name)) for name in self.fields]
        differs = torch.stack([(a != b).flatten(1).any(1) if a.dim() > 1 else a != b for a, b in pairs]).any(0)
        self.requests += len(differs)
        self.wrong += int((differs & (ref.margin > 1)).sum())
        self.close += int((ref.margin <= 1).sum())

    def finding(self, of: str) -> Finding:
        """Return the finding. of: the name of one compared item, such as "request"."""
        statistic = f"{self.wrong} of {self.requests} {of}s differ ({self.close} too close to call)"
        passed = self.wrong == 0 and self.close < self.requests / 10
        return Finding(f"would detect a single {of} with other {' or '.join(self.fields)}", statistic, passed)

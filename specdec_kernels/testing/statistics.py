# SPDX-License-Identifier: Apache-2.0
"""A chi-square test of counted outcomes against their exact distribution, with its power."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

ALPHA = 1e-6  # a right sampler fails one test in a million
POWER = 0.99
FEWEST = 10.0  # an outcome with fewer expected draws has no cell of its own

Law = Mapping  # {outcome: probability}


class Cell(NamedTuple):
    outcome: Hashable
    expected: float  # draws
    drawn: int


@dataclass(frozen=True)
class Report:
    """The comparison of some draws with a distribution. ``bool`` gives whether the draws pass, ``str`` the full text.

    Args:
        p_value: of the chi-square test; 0 if an impossible outcome was drawn.
        statistic: of the chi-square test; infinite if an impossible outcome was drawn.
        freedom: its degrees of freedom, the number of cells less one.
        draws: how many outcomes were counted.
        detects: the total variation at which a wrong sampler fails with probability 0.99 (see ``check_counts``).
        alpha: the p-value below which draws fail.
        rare: how many outcomes have too few expected draws for a cell of their own.
        impossible: outcomes that were drawn although a right sampler never draws them, or never so often.
        worst: up to five outcomes with cells of their own, whose draws are furthest from the expected number in
            standard deviations.
        name: what was tested.
        hint: which wrong rules the test was made for.
    """

    p_value: float
    statistic: float
    freedom: int
    draws: int
    detects: float
    alpha: float
    rare: int
    impossible: tuple[Cell, ...]
    worst: tuple[Cell, ...]
    name: str = ""
    hint: str = ""

    @property
    def cells(self) -> int:
        return self.freedom + 1

    @property
    def passed(self) -> bool:
        return self.p_value >= self.alpha

    def __bool__(self) -> bool:
        return self.passed

    @property
    def summary(self) -> str:
        """The report in one line: the verdict, the p-value, and the smallest shift that is detected."""
        found = f"{'pass' if self.passed else 'FAIL'}, p = {self.p_value:.2g} (fails below {self.alpha:g}), "
        found += f"{self.draws} draws detect a shift of {self.detects:.4f} in total variation"
        return f"{self.name}: {found}" if self.name else found

    def __str__(self) -> str:
        lines = [self.summary]
        if self.impossible:
            shown = [f"{x.outcome} {x.drawn} times, expected {x.expected:.3g}" for x in self.impossible[:5]]
            lines.append(f"  {len(self.impossible)} impossible outcomes drawn: {'; '.join(shown)}")
        else:
            rest = f"{self.freedom} degrees of freedom, {self.rare} rare outcomes"
            lines.append(f"  chi-square {self.statistic:.1f}, {rest}")
        lines += [
            f"  {x.outcome}: expected {x.expected:.1f}, drawn {x.drawn} ({deviation(x):+.1f} standard deviations)"
            for x in self.worst
        ]
        lines += [f"  this finds {self.hint}"] if self.hint and not self.passed else []
        return "\n".join(lines)


def deviation(cell: Cell) -> float:
    return (cell.drawn - cell.expected) / math.sqrt(cell.expected)


def check_counts(
    counts: Mapping | Sequence, law: Law | Sequence, *, alpha: float = ALPHA, fewest: float = FEWEST, name: str = ""
) -> Report:
    """Compare counted outcomes with their exact distribution.

    Outcomes expected fewer than ``fewest`` times share one cell; if that cell too is expected fewer than ``fewest``
    times, it joins the smallest of the others. The test fails at once if an outcome of probability 0 is drawn. It also
    fails if a rare outcome is drawn far too often: of M outcomes, one that is expected e times and drawn k times fails
    if M P(Poisson(e) >= k) < alpha / 1000. This finds errors that a shared cell hides: on peaked rows a wrong rule
    draws tokens of probability e^-50.

    A right sampler fails with probability ``alpha``, plus at most alpha / 1000 for rare outcomes. The smallest shift
    that is detected is derived. For n draws of a sampler whose cells are off by t in total variation, the chi-square
    has a noncentrality of at least 4 n t^2 (by Cauchy-Schwarz: sum (p' - p)^2 / p >= (sum |p' - p|)^2). ``detects`` is
    the t at which the noncentral chi-square exceeds the critical value with probability 0.99. It refers to cells: a
    shift between outcomes of the shared cell is not detected.

    Args:
        counts: {outcome: how often it was drawn}, or a sequence, outcome i drawn counts[i] times.
        law: {outcome: probability}, or a sequence of probabilities; they sum to 1.
        alpha: the test fails if the p-value is below it.
        fewest: the least number of expected draws for which an outcome has a cell of its own.
        name: the name of the tested sampler in the report.

    Returns:
        Report

    Raises:
        ValueError: no draws; probabilities that are negative, not finite or do not sum to 1 within 1e-5.

    Example:
        >>> check_counts({"a": 5300, "b": 4700}, {"a": 0.5, "b": 0.5}).passed
        False
        >>> check_counts([5030, 4970], [0.5, 0.5]).passed
        True

    Source: Pearson 1900; Patnaik 1949 (power by the noncentral chi-square).
    """
    counts, law = (x if isinstance(x, Mapping) else dict(enumerate(np.asarray(x).tolist())) for x in (counts, law))
    outcomes = [*law, *(x for x in counts if x not in law)]
    drawn = np.array([counts.get(x, 0) for x in outcomes], dtype=np.float64)
    mass = np.array([law.get(x, 0.0) for x in outcomes], dtype=np.float64)
    n = drawn.sum()
    if not n > 0:
        raise ValueError("check_counts: counts must hold at least one draw, got none")
    if not (mass >= 0).all() or not abs(mass.sum() - 1) <= 1e-5:
        raise ValueError(f"check_counts: law must be probabilities that sum to 1, got a sum of {mass.sum()}")
    expected = n * mass
    rare = expected < fewest
    cells = [Cell(x, float(e), int(k)) for x, e, k in zip(outcomes, expected, drawn)]
    tail = upper_poisson(drawn, expected)
    impossible = tuple(cells[i] for i in np.flatnonzero(rare & (drawn > 0) & (len(law) * tail < alpha / 1000)))
    worst = sorted((x for x, r in zip(cells, rare) if not r), key=lambda x: -abs(deviation(x)))[:5]
    statistic, freedom = chi_square(*shared(drawn, expected, rare, fewest))
    p_value = 0.0 if impossible else chi_square_tail(statistic, freedom)
    found = (p_value, math.inf if impossible else statistic, freedom, int(n), detected(freedom, float(n), alpha))
    return Report(*found, alpha, int(rare.sum()), impossible, tuple(worst), name)


def passed(report: Report) -> Report:
    if not report:
        raise AssertionError(str(report))
    return report


def shared(drawn, expected, rare, fewest):
    """Return the draws and the expected draws of the cells, with all rare outcomes in one cell."""
    rest = drawn[rare].sum(), expected[rare].sum()
    drawn, expected = drawn[~rare], expected[~rare]
    if rest[1] >= fewest or not len(expected):
        return np.append(drawn, rest[0]), np.append(expected, rest[1])
    smallest = expected.argmin()
    drawn[smallest] += rest[0]
    expected[smallest] += rest[1]
    return drawn, expected


def chi_square(drawn, expected) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom."""
    return float(((drawn - expected) ** 2 / expected).sum()), len(expected) - 1


def _float64(*values):
    return (torch.as_tensor(x, dtype=torch.float64, device="cpu") for x in values)


def upper_poisson(k, mean) -> np.ndarray:
    """Return P(Poisson(mean) >= k), elementwise; 1 for k = 0."""
    k, mean = _float64(k, mean)
    return torch.where(k > 0, torch.special.gammainc(k.clamp(min=1), mean), 1.0).numpy()


def chi_square_tail(x: float, freedom: int, noncentrality: float = 0.0) -> float:
    """Return P(chi-square > x), with a relative error of 2e-9. A noncentral chi-square is summed as a mixture of
    central ones with Poisson weights."""
    if freedom == 0:
        return 1.0
    half = noncentrality / 2
    reach = 12 * math.sqrt(half) + 40
    j = torch.arange(max(0, int(half - reach)), int(half + reach) + 1, dtype=torch.float64, device="cpu")
    weights = (torch.xlogy(j, torch.full_like(j, half)) - half - torch.lgamma(j + 1)).exp()
    return float(weights @ torch.special.gammaincc(freedom / 2 + j, torch.full_like(j, x / 2)))


def detected(freedom: int, n: float, alpha: float) -> float:
    """Return the total variation that n draws detect with probability POWER; 1 if there is only one cell, which detects
    nothing."""
    return min(1.0, math.sqrt(needed(freedom, alpha) / n) / 2) if freedom else 1.0


@lru_cache(maxsize=1024)
def needed(freedom: int, alpha: float) -> float:
    """Return the noncentrality that is detected with probability POWER."""
    critical = bisect(lambda x: chi_square_tail(x, freedom) < alpha, 2 * freedom - 4 * math.log(alpha) + 100)
    return bisect(lambda x: chi_square_tail(critical, freedom, x) > POWER, 4 * (critical + 100))


def bisect(above, high: float) -> float:
    """Return the point in [0, high] at which above() becomes true."""
    low = 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high

# SPDX-License-Identifier: Apache-2.0
"""Findings of the checks, and results compared with the float64 reference's."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..testing import Report


class Finding(NamedTuple):
    purpose: str  # what the check would detect, in words
    statistic: str
    passed: bool


Check = Callable[..., Finding]  # called with (sk, device, seed)


def follows(result: Report) -> Finding:
    statistic = f"chi-square {result.statistic:.1f} on {result.cells} cells, p = {result.p_value:.2g}"
    return Finding(f"would detect a bias of {result.detects:.4f} in total variation", statistic, result.passed)


def does_not_follow(result: Report) -> Finding:
    """Return the finding of a control, whose input is wrong on purpose: the chi-square must notice it."""
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Finding("the input is wrong on purpose, and the test must notice it", statistic, not result.passed)


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

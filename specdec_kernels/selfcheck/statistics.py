# SPDX-License-Identifier: Apache-2.0
"""What the checks share: their findings, and answers compared with the float64 reference's."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..testing import Report


class Finding(NamedTuple):
    would_find: str  # what would not pass
    statistic: str
    passed: bool


Check = Callable[..., Finding]  # of (sk, device, seed)


def follows(result: Report) -> Finding:
    statistic = f"chi-square {result.statistic:.1f} on {result.cells} cells, p = {result.p_value:.2g}"
    return Finding(f"a bias of {result.detects:.4f} in total variation", statistic, result.passed)


def does_not_follow(result: Report) -> Finding:
    """A control: the chi-square must notice what is wrong here on purpose."""
    statistic = f"chi-square {result.statistic:.1f}, p = {result.p_value:.2g}"
    return Finding("a test that cannot fail", statistic, not result.passed)


class Agreement:
    """Answers beside the float64 reference's, uniforms given: equal wherever rounding cannot decide."""

    def __init__(self, *fields: str):
        self.fields, self.requests, self.wrong, self.close = fields, 0, 0, 0

    def add(self, out, ref) -> None:
        pairs = [(getattr(out, name).cpu(), getattr(ref, name)) for name in self.fields]
        differs = torch.stack([(a != b).flatten(1).any(1) if a.dim() > 1 else a != b for a, b in pairs]).any(0)
        self.requests += len(differs)
        self.wrong += int((differs & (ref.margin > 1)).sum())
        self.close += int((ref.margin <= 1).sum())

    def finding(self, of: str) -> Finding:
        """of: what one answer is of, as "request"."""
        statistic = f"{self.wrong} of {self.requests} {of}s differ ({self.close} too close to call)"
        passed = self.wrong == 0 and self.close < self.requests / 10
        return Finding(f"a wrong {' or '.join(self.fields)} in one {of}", statistic, passed)

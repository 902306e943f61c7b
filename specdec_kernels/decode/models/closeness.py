# SPDX-License-Identifier: Apache-2.0
"""Test whether two passes of a model agree, up to the rounding that different batch shapes cause in its dtype."""

from collections.abc import Iterable

import torch

__all__ = ["Closeness"]

_WORSE = 8  # ratio of tolerance to noise, since other passes use other kernels and orders of summation


class Closeness:
    """Comparison of logits [..., V], token by token, with a tolerance measured on the model itself.

    A token's deviation is the root mean square difference of its two rows, divided by the standard deviation of the
    expected row. The noise is the largest deviation between plain passes of different shapes over the same tokens. Rows
    agree if they deviate by at most 8 times the noise. They also agree if two thirds of the dtype's digits are equal,
    because the noise may happen to be 0. For comparison: an ignored position, or one key too many, moves a trained
    model's logits by half of their standard deviation or more.

    In half precision a rounding may route a token of a mixture of experts differently. There more than half of a row's
    tokens must agree; otherwise all must.

    Args:
        pairs: logits [n, T, V] of two plain passes each, over the same tokens.
        dtype: the model's dtype.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype):
        eps = max(torch.finfo(x).eps for x in (dtype, torch.float32))  # norms and angles are float32 in any model
        self.quantile = 0.5 if eps > torch.finfo(torch.float32).eps else 1.0
        self.noise = max(self.deviation(got, want) for got, want in pairs)
        self.tolerance = max(_WORSE * self.noise, eps ** (2 / 3))
        self.rows_are_independent = self.noise <= eps ** (1 / 3)

    def deviation(self, got: torch.Tensor, want: torch.Tensor) -> float:
        """Return the deviation of the worst row of [n, T, V]; infinite if only one side has a NaN."""
        got, want = got.float(), want.float()
        same = (got == want) | (got.isnan() & want.isnan())
        finite = want.isfinite()
        apart = torch.where(same, 0.0, got - want).square().mean(-1).sqrt()
        count = finite.sum(-1, keepdim=True).clamp(min=1)
        mean = torch.where(finite, want, 0.0).sum(-1, keepdim=True) / count
        spread = torch.where(finite, want - mean, 0.0).square().mean(-1).sqrt()
        each = torch.where(apart == 0, 0.0, apart / spread).nan_to_num(nan=torch.inf)
        return float(each.quantile(self.quantile, dim=-1, interpolation="higher").max())

    def agrees(self, got: torch.Tensor, want: torch.Tensor) -> bool:
        return self.deviation(got, want) <= self.tolerance

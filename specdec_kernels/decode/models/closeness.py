# SPDX-License-Identifier: Apache-2.0
"""When two passes of a model agree: up to what the shape of a batch does to sums in its dtype."""

from collections.abc import Iterable

import torch

__all__ = ["Closeness"]

_WORSE = 8  # times the noise: more kernels than those of the passes that were compared, and other orders of sums


class Closeness:
    """Compares logits [..., V], token by token, with a tolerance that comes from the model itself.

    A token's deviation is the root mean square of the difference of its two rows, relative to the spread of the one
    that is wanted. The noise is the largest deviation of rows that plain passes of other shapes give for the same
    tokens. What differs by at most 8 times that agrees, and so does what has two thirds of the dtype's digits in
    common, because plain passes may happen to be equal. A position that is ignored, or a key too many, moves a trained
    model's logits by half of their spread or more.

    In half precision a mixture of experts may route a token elsewhere over a rounding; there more than half of
    the tokens of a row must agree, elsewhere all.

    Args:
        pairs: logits [n, T, V] of one plain pass and of another, in which the same tokens stand.
        dtype: of the model.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype):
        eps = max(torch.finfo(x).eps for x in (dtype, torch.float32))  # norms and angles are float32 in any model
        self.quantile = 0.5 if eps > torch.finfo(torch.float32).eps else 1.0
        self.noise = max(self.deviation(got, want) for got, want in pairs)
        self.tolerance = max(_WORSE * self.noise, eps ** (2 / 3))
        self.rows_are_independent = self.noise <= eps ** (1 / 3)

    def deviation(self, got: torch.Tensor, want: torch.Tensor) -> float:
        """That of the worst row of [n, T, V]; infinite where there is a NaN on one side alone."""
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

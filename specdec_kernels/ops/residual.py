# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call
from specdec_kernels.ops._fake import fake

_residual = _call.op("residual")


def residual(
    p: torch.Tensor, q: torch.Tensor, *, num_rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distribution of the replacement for a rejected token, norm((p - q)+), and its mass before norm().

    It is for engines that compose their own step. ``verify_chain`` draws from this row without writing it.

    Args:
        p: [N, V] target probabilities, float32, bfloat16 or float16. A negative entry, also -inf, counts as 0.
        q: [N, Vq] draft probabilities (a missing entry is 0; one outside [0, 1 + 1e-3] counts as 0), or [N] int32 /
            int64 ids of one-hot drafts (id -1 removes nothing).
        num_rows: as in ``row_stats``.

    Returns:
        probs [N, V] float32, and mass [N] float64 = sum (p - q)+ = 1 - sum min(p, q), the rejection probability.
        If the mass is 0, probs is p normalised. For a row of p that holds NaN or +inf, mass is NaN and probs is one-hot
        at the row's largest finite entry. A row of p without mass gives one-hot probs too. An absent row gives 0.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> residual(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]]))[0]
        tensor([[1., 0., 0.]])

    Source: Leviathan et al. 2023, Algorithm 1 and Appendix A.1; Chen et al. 2023, Algorithm 2.
    """
    return _residual(p, q, num_rows)


@fake("residual")
def _(p):
    return p.new_empty(p.shape, dtype=torch.float32), p.new_empty((p.size(0),), dtype=torch.float64)

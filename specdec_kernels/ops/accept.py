# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake

_accept = _call.op("accept")


def accept(p: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The acceptance test of speculative sampling, elementwise: accept with probability min(1, p / q).

    The test is ``0 < q <= 1 + 1e-3 and u * min(q, 1) < p``, in float64. The comparison is strict, so p = 0 is never
    accepted. NaN in p or q rejects. A drafted token with q = 0 was not drawn from q and is rejected.

    Args:
        p: target probability of each drafted token, any shape; float32, float64, bfloat16 or float16.
        q: draft probability of the same token, same shape; or integer ids of one-hot drafts (q = 1; an id below 0
            is no draft and is rejected).
        u: float64 uniforms in [0, 1), same shape. Values outside count as the nearer end, NaN as 0.

    Returns:
        bool, same shape.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> accept(torch.tensor([0.3]), torch.tensor([0.5]), torch.tensor([0.59], dtype=torch.float64))
        tensor([True])

    Source: Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2.
    """
    return _accept(_check.contiguous(p), _check.contiguous(q), _check.contiguous(u))


@fake("accept")
def _(p):
    return p.new_empty(p.shape, dtype=torch.bool)

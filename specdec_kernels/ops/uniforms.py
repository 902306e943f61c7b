# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake
from specdec_kernels.registry import DOMAIN_ACCEPT

_uniforms = _call.op("uniforms")


def uniforms(seed: torch.Tensor, offset: torch.Tensor, n: int, domain: int = DOMAIN_ACCEPT) -> torch.Tensor:
    """Return the random numbers that the ops draw for a seed and an offset.

    They come from Philox4x32-10, without state: key = the request's seed, counter = (block, offset low, offset high,
    domain). Slot i is word pair ``i & 1`` of block ``i >> 1``. A number depends only on (seed, offset, domain, slot),
    so neither other requests nor padding can change a request's tokens. ``offset`` is the number of tokens in the
    sequence when the step starts. It grows with every step, so no two steps share a number, except in domain 3, where
    ``offset`` is the absolute position of a token.

    Args:
        seed: [B] int64.
        offset: [B] int64.
        n: slots per request, 0 to 2^33; RuntimeError if the result does not fit in memory.
        domain: 0 accept tests, 1 final draw, 2 draft sampling, 3 noise of a race, where the slot is the token id.

    Returns:
        [B, n] float64 in [0, 1), multiples of 2^-53.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> uniforms(torch.tensor([7]), torch.tensor([0]), 2).shape
        torch.Size([1, 2])

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    op = "uniforms"
    return _uniforms(seed, offset, _check.integer(op, "n", n), _check.integer(op, "domain", domain))


@fake("uniforms")
def _(seed, n):
    return seed.new_empty((seed.size(0), n), dtype=torch.float64)

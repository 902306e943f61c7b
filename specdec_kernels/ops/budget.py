# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake

_budget = _call.op("budget")


def budget(survival: torch.Tensor, total: int, num_drafts: torch.Tensor | None = None) -> torch.Tensor:
    """Return how many drafts of each request to verify, if the batch has room for `total`.

    A slot is a draft's position in one request. Its survival is the probability that its draft and all drafts before it
    are accepted. Every slot costs the target the same, so the slots of largest survival are kept. The kept slots of a
    request are always a prefix of its drafts. Ties go to the earlier position, then to the request of lower index.

    **The output stays exact only if the survival of a slot depends on nothing but what was known before its token was
    drawn**: the draft's row, earlier tokens, other requests. The row's largest probability, its entropy and the sum of
    its squares are valid choices. The drawn token's own probability is not: likely tokens would be verified more often,
    and the output would be biased. The largest probability follows from the stats, without reading the rows again:

    ``survival = (-draft.stats[..., 2]).exp().cumprod(1)``

    Here ``draft`` is the Rows [B, G, V] that the drafts were sampled from. For a greedy row, stats[..., 2] is its token
    id instead: use 1 as its factor. A calibrated estimate of acceptance, computed from the largest probability,
    gives a better choice.

    Args:
        survival: [B, G] float32, any strides. NaN and negative values count as 0. If survival rises along a request,
            the smallest value so far counts. B * G is at most 2^30. On a GPU one block does all the work, so batches of
            more than about 10,000 slots are slow.
        total: the number of drafts to keep, >= 0.
        num_drafts: [B] int32 or int64, how many drafts each request has, from 0 to G. None: all have G.

    Returns:
        kept [B] int32. The sum is ``total``, or the number of drafts if that is less. As a ragged batch of
        ``verify_chain``, the kept drafts have ``cu_draft = [0, *kept.cumsum(0)]``.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. A ``num_drafts`` outside [0, G]
        raises on the CPU; on a GPU it is clamped.

    Example:
        >>> survival = torch.tensor([[0.9, 0.5, 0.2], [0.6, 0.4, 0.3]])
        >>> [budget(survival, total).tolist() for total in (1, 3, 5)]
        [[1, 0], [2, 1], [2, 3]]

    Source: none. The sum of the kept survivals is the expected number of accepted drafts, and the largest terms
    maximise it.
    """
    op = "budget"
    total = _check.integer(op, "total", total, 0, (1 << 63) - 1, ">= 0 and below 2^63")
    return _budget(survival, total, num_drafts)


@fake("budget")
def _(survival):
    return survival.new_empty((survival.size(0),), dtype=torch.int32)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake

_budget = _call.op("budget")


def budget(survival: torch.Tensor, total: int, num_drafts: torch.Tensor | None = None) -> torch.Tensor:
    """Return how many drafts of each request to verify, if the batch has room for `total`.

    Scoring a draft costs the same for every request, but its worth differs: it is the probability that this draft and
    all before it are accepted, its survival. The slots of largest survival are taken, and those of a request are a
    prefix of its drafts. Of equal survival the earlier position comes first, then the request of lower index.

    **The output stays exact only if the survival of a slot depends on nothing but what was there before its token was
    drawn**: the draft's row, earlier tokens, other requests. The row's largest probability, its entropy or the sum of
    its squares will do. The drawn token's own probability will not: likely tokens are then verified more often, and
    the output is biased. From the stats of the draft's rows, without reading them again:

    ``survival = (-draft.stats[..., 2]).exp().cumprod(1)``

    with ``draft`` the Rows [B, G, V] that the drafts were sampled from. (A greedy row's stats hold its id there; it
    has survival 1.) A calibrated estimate of acceptance, made from that probability, is better.

    Args:
        survival: [B, G] float32, any strides. NaN and negative values count as 0. If survival rises along a request,
            the smallest value so far counts. B * G is at most 2^30; one block does the work, so batches of more than
            some 10,000 slots take long.
        total: the number of drafts to keep, >= 0.
        num_drafts: [B] int32 or int64, how many drafts each request has, from 0 to G. None: G.

    Returns:
        kept [B] int32. They add up to ``total``, or to the number of drafts if that is less. A ragged batch of
        ``verify_chain`` has ``cu_draft = [0, *kept.cumsum(0)]``.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. For tensors on the CPU this includes
        a ``num_drafts`` outside [0, G], which is clamped elsewhere.

    Example:
        >>> survival = torch.tensor([[0.9, 0.5, 0.2], [0.6, 0.4, 0.3]])
        >>> [budget(survival, total).tolist() for total in (1, 3, 5)]
        [[1, 0], [2, 1], [2, 3]]

    Source: none; the largest terms of a sum. Engines that trim drafts to a budget do so by hand.
    """
    op = "budget"
    total = _check.integer(op, "total", total, 0, (1 << 63) - 1, ">= 0 and below 2^63")
    return _budget(survival, total, num_drafts)


@fake("budget")
def _(survival):
    return survival.new_empty((survival.size(0),), dtype=torch.int32)

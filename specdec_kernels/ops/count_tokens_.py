# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call
from specdec_kernels.ops._fake import fake

_count_tokens_ = _call.op("count_tokens_")


def count_tokens_(
    ids: torch.Tensor,
    counts: torch.Tensor,
    tokens: torch.Tensor,
    num_tokens: torch.Tensor | None = None,
    row: torch.Tensor | None = None,
) -> torch.Tensor:
    """Count the tokens of a step in the lists that ``Penalties`` reads, in place and without waiting for the device.

    Afterwards the lists are those that ``history`` makes of the prompts and the longer outputs, so penalties and counts
    need no work on the host between steps. Only lists that are given in ``row`` change.

    If old and new distinct tokens do not all fit in a list, it keeps those with the largest counts, and at equal counts
    those with the lowest ids. So tokens that are only in the prompt, with count 0, are dropped first.

    Args:
        ids: [S, H] int32, the tokens of each list: strictly ascending, then -1. It is written to. Rows may have
            any stride but must not overlap, and the entries of a row must be adjacent in memory.
        counts: [S, H] int32, how often each of ``ids`` is in the output; 0 for a token that is only in the prompt. It
            is written to, and must be laid out like ``ids``. Counts stay at 2^31 - 1 once they reach it.
        tokens: [B, n] int32 or int64, any strides, the tokens that the step emitted: the result of ``verify_chain`` or
            ``verify_tree``. n is at most 1024. Ids outside [0, 2^24) change nothing.
        num_tokens: [B] int32 or int64, how many of each request's tokens count: ``num_accepted + 1``. None: those
            before the first -1.
        row: [B] int32 or int64, the index of each request's list; -1: an absent request, which changes nothing. No list
            may be given twice. None: list b is request b's.

    Returns:
        status [B] int32, 0 or one of two bits. STATUS_HISTORY_FULL: the list had no room for every token, so some were
        dropped or not added. STATUS_INVALID_ROW: nothing was counted, since the request's list is not as described, its
        index is out of range, or an earlier request has the same list.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. On the CPU, whatever sets
        STATUS_INVALID_ROW on a GPU raises, and so does a ``num_tokens`` outside [0, n], which a GPU clamps. An error
        leaves all lists unchanged. Lists that share memory raise on every device.

    Example:
        >>> ids, counts = specdec_kernels.history([[3]], [[0, 0, 2]], size=4)
        >>> status = count_tokens_(ids, counts, torch.tensor([[2, 1, -1]]))
        >>> ids.tolist(), counts.tolist()
        ([[0, 1, 2, 3]], [[2, 1, 2, 0]])

    Source: none; the counts are those of OpenAI's API (frequency and presence penalties).
    """
    return _count_tokens_(ids, counts, tokens, num_tokens, row)


@fake("count_tokens_")
def _(tokens):
    return tokens.new_empty((tokens.size(0),), dtype=torch.int32)

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_top_logprobs = _call.op("top_logprobs")


class TopLogprobsOutput(NamedTuple):
    ids: torch.Tensor  # [N, k] int64
    logprobs: torch.Tensor  # [N, k] float32
    token_logprobs: torch.Tensor  # [N, m] float32
    token_ranks: torch.Tensor  # [N, m] int64


def top_logprobs(
    rows: Rows | torch.Tensor, k: int, tokens: torch.Tensor | None = None, *, num_rows: torch.Tensor | None = None
) -> TopLogprobsOutput:
    """Return the k most likely ids of each row with their logprobs, and the logprob and rank of given ids.

    Rows without parameters have the model's own distribution, as vLLM's ``raw_logprobs``. Rows with a request's
    temperature and filters, or with stats made with them, have the distribution that it samples from, as vLLM's
    ``processed_logprobs``. In both cases ids are ordered by their logits, so they are the same; ids below a cutoff have
    logprob -inf. To get logits instead, gather them: ``logits.gather(1, ids)`` is vLLM's ``raw_logits``.
    Multiplied by the stats' scale, and set to -inf where the logprob is -inf, these are vLLM's ``processed_logits``.

    Given its stats, a row is read once. If k is small compared with V, a GPU then reads the chunks of 1024 logits that
    hold the best ids again, usually at most k chunks. For larger k it reads the row a few more times for every 4096
    ids. Only the k best ids are sorted.

    Args:
        rows: [N, V], ``Rows`` of logits with their stats [N, 4], or with sampling parameters, each a number or [N] (the
            stats are then computed first); or a tensor: the rows as they are. Penalties: [N] or numbers, lists [S, H]
            with ``penalties.row`` [N], ``penalties.drafted`` [N, n]. Bias: lists [S, I] with ``bias.row`` [N]. Masks:
            [S, W] with ``allowed.row`` [N].
        k: the number of most likely ids, from 0 to V.
        tokens: [N, m] int32 or int64, the given ids. None: m = 0.
        num_rows: [1] int32 or int64 on the device, for padded buffers: rows from this index on are absent and not
            read. Below 0 it counts as 0, above N as N. None: all rows are present.

    Returns:
        TopLogprobsOutput: ids [N, k] int64, the most likely first, the lowest id first among equal logits (-0 and +0
        are equal); logprobs [N, k] float32; token_logprobs [N, m] float32 and token_ranks [N, m] int64, the number of
        ids whose logit is at least the token's, itself included: 1 is the best. A greedy row has logprob 0 at its
        argmax and -inf elsewhere. A token outside [0, V) has logprob -inf and rank 0. An invalid row (NaN, +inf, no
        finite entry) has logprobs NaN. Its ids are still ordered by logit, +inf first and NaN last, and a token with
        logit NaN has rank 0. An absent row has ids -1, and 0 everywhere else.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0]]).log()
        >>> out = top_logprobs(z, 2, tokens=torch.tensor([[2, 7]]))
        >>> out.ids, out.logprobs.exp()
        (tensor([[0, 1]]), tensor([[0.5000, 0.3000]]))
        >>> out.token_ranks, out.token_logprobs.exp()
        (tensor([[3, 0]]), tensor([[0.2000, 0.0000]]))

    Source: the logprobs of an engine's API; the rank is vLLM's.
    """
    op = "top_logprobs"
    logits, sampling, stats, _, views = _rows.of_logits(op, "rows", rows)
    k = _check.integer(op, "k", k)
    stats = _rows.stats_of(op, "rows", logits, sampling, stats, num_rows, views)
    return TopLogprobsOutput(*_top_logprobs(logits, stats, k, tokens, num_rows, *views))


@fake("top_logprobs")
def _(logits, k, tokens):
    n, m = logits.size(0), 0 if tokens is None else tokens.size(1)
    return (
        logits.new_empty((n, k), dtype=torch.int64),
        logits.new_empty((n, k), dtype=torch.float32),
        logits.new_empty((n, m), dtype=torch.float32),
        logits.new_empty((n, m), dtype=torch.int64),
    )

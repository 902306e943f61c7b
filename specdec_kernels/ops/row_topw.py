# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_row_topw = _call.op("row_topw")


class RowTopwOutput(NamedTuple):
    scores: torch.Tensor  # [N, w] float32
    ids: torch.Tensor  # [N, w] int64


def row_topw(
    rows: Rows | torch.Tensor, score: torch.Tensor, w: int, *, num_rows: torch.Tensor | None = None
) -> RowTopwOutput:
    """Return the w best one-token continuations of each beam: all that a step of beam search needs from its row.

    The score of a continuation is the beam's plus ln p, rounded to float32 once. At equal scores the lower id comes
    first. Beams are compared by float32 scores, as in engines. Near -3000 neighbouring float32 numbers are 0.00024
    apart, so tokens with different logits may have equal scores there. ``top_logprobs`` orders by logit, so it may
    choose other beams.

    A row is read once, which gives its log-normaliser and the largest logit of every chunk of 1024. Only the chunks
    that can hold one of the best ids are read again: usually at most w, and more if many ids have equal scores.

    Args:
        rows: [N, V], ``Rows`` of logits. With their stats [N, 4] the result is the same on every device and instruction
            set. With sampling parameters, each a number or [N], the stats are computed first. With neither, the
            first read also computes the stats of the plain softmax. Penalties, biases and masks are those of ``Rows``:
            S lists each, with one index a row, [N] (``penalties.row``, ``bias.row``, ``allowed.row``), and for
            penalties the drafted tokens before each row (``penalties.drafted`` [N, n]).
        score: [N] float32: the score of each row's beam so far, a sum of logprobs.
        w: the number of continuations, from 0 to V.
        num_rows: [1] int32 or int64 on the device, for padded buffers: rows from this index on are absent and not
            read. Below 0 it counts as 0, above N as N. None: all rows are present.

    Returns:
        RowTopwOutput: scores [N, w] float32, descending, and ids [N, w] int64. The score is -inf for an id below the
        cutoff, for one whose logit is -inf, and for all ids of a beam with score -inf. An invalid row (NaN, +inf,
        no finite entry), and a row whose beam has score NaN or +inf, has ids 0, 1, ... and scores NaN. An absent row
        has ids -1 and scores 0.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[1.0, 2.0, 2.00001], [1.0, 2.0, 2.00001]])
        >>> row_topw(z, torch.tensor([0.0, -3000.0]), 2).ids  # equal scores in the second beam
        tensor([[2, 1],
                [1, 2]])

    Source: a step of beam search. The order of ties makes it deterministic, so ``decode.beam_search`` can replay it.
    """
    op = "row_topw"
    logits, sampling, stats, _, views = _rows.of_logits(op, "rows", rows)
    w = _check.integer(op, "w", w)
    if isinstance(rows, Rows) and _rows.samples(rows):
        stats = _rows.stats_of(op, "rows", logits, sampling, stats, num_rows, views)
    return RowTopwOutput(*_row_topw(logits, stats, _check.contiguous(score), w, num_rows, *views))


@fake("row_topw")
def _(logits, w):
    n = logits.size(0)
    return logits.new_empty((n, w), dtype=torch.float32), logits.new_empty((n, w), dtype=torch.int64)

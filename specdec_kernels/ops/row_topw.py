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
    """Return the w best continuations of each beam by one token, all that a step of beam search needs of its row.

    A continuation is worth score + ln p, rounded to float32 once, and of equal ones the lower id comes first. Scores
    are float32 because that is what beams are compared by, here as in engines: at -3000 two neighbours lie 0.00024
    apart, so different logits come to one score there. ``top_logprobs`` orders by the logit and gives other beams.

    A row is read once: what finds the log-normaliser leaves the largest logit of every 1024, and the few chunks that
    can hold one of the best are read again, at most w as a rule. Where scores are so coarse that many ids tie, more.

    Args:
        rows: [N, V], ``Rows`` of logits. With their stats [N, 4] the result is the same on every device and instruction
            set. With sampling parameters, each a number or [N], stats are made first; without either those of the plain
            softmax are made on the way. Penalties: [N] or numbers, lists [S, H] with ``penalties.row`` [N],
            ``penalties.drafted`` [N, n]. Bias: lists [S, I] with ``bias.row`` [N]. Masks: [S, W] with ``allowed.row``
            [N].
        score: [N] float32, of the beam that each row belongs to: the sum of its logprobs so far.
        w: from 0 to V.
        num_rows: [1] int32 or int64 on the device, for padded buffers: rows from this index on are absent and not
            read. Below 0 it counts as 0, above N as N. None: all rows are present.

    Returns:
        RowTopwOutput: scores [N, w] float32, descending, and ids [N, w] int64. An id below the cutoff, and one whose
        logit is -inf or NaN, is worth -inf; a beam of score -inf has nothing else. An invalid row (NaN, +inf,
        nothing finite), and one whose score is NaN or +inf, has the ids 0, 1, ... and NaN for every score. An absent
        row has ids -1 and zeros.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[1.0, 2.0, 2.00001], [1.0, 2.0, 2.00001]])
        >>> row_topw(z, torch.tensor([0.0, -3000.0]), 2).ids  # the second beam cannot tell the two apart
        tensor([[2, 1],
                [1, 2]])

    Source: a step of beam search; the order makes it deterministic, so that it can be replayed (decode.beam_search).
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

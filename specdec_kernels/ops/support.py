# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows
from specdec_kernels.ops._fake import fake
from specdec_kernels.rows import Rows

_support = _call.op("support")


class SupportOutput(NamedTuple):
    ids: torch.Tensor  # [M, max_kept] int32
    counts: torch.Tensor  # [M] int32
    bits: torch.Tensor  # [M, ceil(V / 32)] int32


def support(rows: Rows | torch.Tensor, max_kept: int, *, num_rows: torch.Tensor | None = None) -> SupportOutput:
    """Return the ids that each row keeps after temperature and filters, over which a trainer renormalises.

    The cutoff in a row's stats decides which ids it keeps, so the op reads the row once and does not sort it. ``bits``
    always holds the whole set. ``ids`` lists it, and is complete if ``counts <= max_kept``.

    Args:
        rows: [N, V], ``Rows`` of logits with their stats [N, 4], or with filters, each a number or [N]; then the stats
            are computed here. ``row`` [M] int32 or int64: the index of each row wanted, repeats allowed; an index
            outside [0, N) keeps nothing. None: every row, M = N. Penalties: [N] or numbers, lists [S, H] with
            ``penalties.row`` [N], ``penalties.drafted`` [N, n]. Bias: lists [S, I] with ``bias.row`` [N]. Masks: [S, W]
            with ``allowed.row`` [N].
        max_kept: the number of columns of ``ids``, in [0, 2^24].
        num_rows: [1] int32 or int64 on the device, for padded buffers: the rows wanted from this position on are
            absent and not read. Below 0 it counts as 0, above M as M. None: all are present.

    Returns:
        SupportOutput: ids [M, max_kept] int32, ascending, then -1; if more are kept, the lowest max_kept of them.
        counts [M] int32, how many are kept, which may exceed max_kept. bits [M, ceil(V / 32)] int32: id v is kept
        if bit v % 32 of word v // 32 is set. All logits equal to the cutoff are kept. A greedy row keeps its argmax
        only. Invalid and absent rows keep nothing.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0, 3.0]]).log()
        >>> support(Rows(z, top_k=2), max_kept=4)
        SupportOutput(ids=tensor([[ 0,  1,  3, -1]], dtype=torch.int32), counts=tensor([3], dtype=torch.int32),
            bits=tensor([[11]], dtype=torch.int32))

    Source: the sampling mask that engines hand to trainers, so that both normalise over the same ids.
    """
    op = "support"
    logits, sampling, stats, row, views = _rows.of_logits(op, "rows", rows, row=True)
    max_kept = _check.integer(op, "max_kept", max_kept)
    stats = _rows.stats_of(op, "rows", logits, sampling, stats, num_rows if row is None else None, views)
    return SupportOutput(*_support(logits, stats, row, max_kept, num_rows, *views))


@fake("support")
def _(logits, row, max_kept):
    m = logits.size(0) if row is None else row.size(0)
    return (
        logits.new_empty((m, max_kept), dtype=torch.int32),
        logits.new_empty((m,), dtype=torch.int32),
        logits.new_empty((m, (logits.size(1) + 31) // 32), dtype=torch.int32),
    )

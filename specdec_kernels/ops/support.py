# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import MAX_VOCABULARY


class SupportOutput(NamedTuple):
    ids: torch.Tensor  # [M, max_kept] int32
    counts: torch.Tensor  # [M] int32
    bits: torch.Tensor  # [M, ceil(V / 32)] int32


def support(
    logits: torch.Tensor,
    stats: torch.Tensor,
    max_kept: int,
    rows: torch.Tensor | None = None,
    *,
    num_rows: torch.Tensor | None = None,
) -> SupportOutput:
    """Which ids each row keeps after temperature and filters: what a trainer renormalises over.

    One pass over the row from the cutoff in its stats, and no sort. ``bits`` holds the whole set whatever max_kept is;
    ``ids`` is the short form of it, complete where ``counts <= max_kept``.

    Args:
        logits: [N, V] float32, bfloat16 or float16. Rows may have any stride; entries of a row must be neighbours.
        stats: [N, 4] float32 from ``row_stats`` or ``sample``, made with the filters.
        max_kept: how many ids of a row there is room for, in [0, 2^24].
        rows: [M] int32 or int64, which rows of logits and stats are asked for, each as often as it is named. One
            outside [0, N) keeps nothing. None: every row, M = N.
        num_rows: [1] int32 or int64 on the device, of padded buffers: of what is asked for, rows from it on are absent,
            and nothing of them is read. Below 0 it counts as 0, above M as M. None: all of it is there.

    Returns:
        SupportOutput: ids [M, max_kept] int32, ascending, then -1; where more are kept, the lowest max_kept of them.
        counts [M] int32, how many are kept, which may exceed max_kept. bits [M, ceil(V / 32)] int32: id v is kept
        where bit v % 32 of word v // 32 is set. All logits equal to the cutoff are kept; of a greedy row its argmax
        alone; of a row that is no law, and of an absent one, nothing.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> z = torch.tensor([[5.0, 3.0, 2.0, 3.0]]).log()
        >>> stats = torch.tensor([[1.0, z[0, 1], 0.7885, z[0, 0]]])  # as row_stats(z, top_k=2) makes them
        >>> support(z, stats, max_kept=4)
        SupportOutput(ids=tensor([[ 0,  1,  3, -1]], dtype=torch.int32), counts=tensor([3], dtype=torch.int32),
            bits=tensor([[11]], dtype=torch.int32))

    Source: the sampling mask that engines hand to trainers, so that both normalise over the same ids.
    """
    op = "support"
    _check.rows(op, "logits", logits, "N, V")
    device = logits.device
    stats = _check.stats(op, "stats", stats, logits.size(0), device)
    max_kept = _check.integer(op, "max_kept", max_kept, 0, MAX_VOCABULARY, "in [0, 2^24]")
    if rows is not None:
        _check.tensor(op, "rows", rows, _check.INTEGERS, device)
        _check.dims(op, "rows", rows, "M")
    num_rows = _check.present(op, "num_rows", num_rows, device)
    return SupportOutput(*torch.ops.specdec.support.default(logits, stats, max_kept, rows, num_rows))


@torch.library.register_fake("specdec::support")
def _(logits, stats, max_kept, rows, num_rows):
    m = logits.size(0) if rows is None else rows.size(0)
    return (
        logits.new_empty((m, max_kept), dtype=torch.int32),
        logits.new_empty((m,), dtype=torch.int32),
        logits.new_empty((m, (logits.size(1) + 31) // 32), dtype=torch.int32),
    )

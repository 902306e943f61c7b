# SPDX-License-Identifier: Apache-2.0
"""row_stats: one wide scan of the chunks, then a program per row that turns chunk sums into the four floats."""

import torch
import triton.language as tl

from .core import check
from .core import launch
from .core.row import locate
from .core.row_stats import Parameters, row_law
from .core.chunk_sums import parameter, scan_kernel


@launch.kernel
def law_kernel(
    rows, V, batch_stride, row_stride, B, G, bonus, extra, cu_draft, D, temperature, temperature_stride,
    top_ks, top_k_stride, top_ps, top_p_stride, min_ps, min_p_stride, maxes, sums, listed, few, stats, chunks,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b, index, offset, exists = locate(slot, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D)
    each = tl.program_id(0) * ROWS + tl.arange(0, ROWS * TOGETHER) // TOGETHER
    _, each_index, each_offset, _ = locate(each, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D)
    given = Parameters(temperature, temperature_stride, top_ks, top_k_stride, top_ps, top_p_stride, min_ps, min_p_stride)
    T = parameter(temperature, b, temperature_stride, exists, 1.0)
    scale, cutoff, log_norm, top = row_law(
        rows, V, b, slot.to(tl.int64), each.to(tl.int64), offset, each_offset, index * chunks, each_index * chunks, exists, given, T,
        maxes, sums, listed, few, chunks, TOGETHER, ROWS, WIDTH, CHUNKS, FEW,
    )  # fmt: skip
    out = stats + index * 4
    tl.store(out, scale, mask=exists)
    tl.store(out + 1, cutoff, mask=exists)
    tl.store(out + 2, log_norm, mask=exists)
    tl.store(out + 3, top, mask=exists)


def scan(rows: check.Rows, layout: launch.Layout, sampling: check.Sampling, stats: torch.Tensor | None) -> launch.Sums:
    """The largest finite logit and the exponential sum of every chunk of the rows of one side."""
    sums = launch.Sums(rows, layout)
    table = launch.table(rows.V)
    if layout.slots:
        grid = (launch.blocks(layout.slots, table.rows), launch.blocks(sums.chunks, table.per_program(layout.slots)))
        launch.run(
            scan_kernel, grid, table.wide_threads, *rows.arguments(), *layout.arguments(), *sampling.temperature, stats,
            sums.maxes, sums.sums, sums.chunks, table.per_program(layout.slots), ROWS=table.rows, WIDTH=table.width,
        )  # fmt: skip
    return sums


def laws(rows: check.Rows, layout: launch.Layout, sampling: check.Sampling) -> tuple[torch.Tensor, launch.Sums]:
    """Scan and law: the stats [rows, 4] of one side, with the chunk sums behind them."""
    sums = scan(rows, layout, sampling, None)
    table = launch.table(rows.V)
    stats = launch.empty(rows, (layout.rows, 4), torch.float32)
    listed = few = None
    if sampling.filters():
        listed = launch.empty(rows, (layout.slots, sums.chunks), torch.int32)
        few = launch.empty(rows, (layout.slots, table.few), torch.float32)
    if layout.slots:
        launch.run(
            law_kernel, (launch.blocks(layout.slots, table.rows),), table.row_threads, *rows.arguments(), *layout.arguments(),
            *sampling.arguments(), sums.maxes, sums.sums, listed, few, stats, sums.chunks,
            TOGETHER=table.together, ROWS=table.rows, WIDTH=table.width, CHUNKS=table.chunks, FEW=table.few,
        )  # fmt: skip
    return stats, sums


def row_stats(logits, temperature, top_k, top_p, min_p):
    op = "row_stats"
    check.given(op, logits=logits)
    check.dim(op, "logits", logits, 2)
    rows = check.rows(op, "logits", logits)
    sampling = check.sampling(op, "", temperature, top_k, top_p, min_p, logits)
    return laws(rows, launch.Layout.flat(logits.size(0)), sampling)[0]

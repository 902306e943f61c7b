# SPDX-License-Identifier: Apache-2.0
"""row_stats: one wide scan of the chunks, then a program per row that turns chunk sums into the four floats."""

import torch
import triton
import triton.language as tl

from .core import launch
from .core.arguments import row_memory, sampling
from .core.filters import Block
from .core.padded import is_present, put_absent
from .core.row import FLT_MAX, Scratch, chunk_sum, chunks_of, load_chunk, offset_of, span, store_stats
from .core.row_stats import scale_of, stats_of, temperature_of
from .core.store import names_row, number_of


@triton.jit
def locate(slot, rows, B, G, bonus, D, cu_draft, count):
    """Slot of a grid over requests and their G + bonus positions -> request, its row, the row's index, whether it
    exists.

    A request's rows are laid out G + extra at a time, or one after the other as cu_draft tells; or `rows` say where.
    """
    positions = G + bonus
    b = slot // positions
    i = (slot - b * positions).to(tl.int64)
    b = b.to(tl.int64)
    exists = (slot < B * positions) & is_present(count, b)
    if cu_draft is None:
        index = b * (G + rows.extra) + i
        row = i
    else:
        start, g = span(cu_draft, b, G, D, exists)
        index = start + b * rows.extra + i
        row = index
        exists = exists & (i < g + bonus)
    if rows.store.row is None:
        return b, row, index, exists
    else:
        row = number_of(rows.store, index, exists)
        return b, row, index, exists & names_row(rows.store, row)


@launch.kernel
def scan_kernel(rows, B, G, bonus, D, cu_draft, count, per_program, S: tl.constexpr):
    """Every chunk of every row: its largest finite logit and its sum of exponentials relative to it."""
    slot = tl.program_id(0) * S.ROWS + tl.arange(0, S.ROWS)
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    offset = offset_of(rows, b, row)
    if rows.stats is None:
        scale = scale_of(temperature_of(rows, b, exists))
        cutoff = tl.zeros([S.ROWS], tl.float32) - FLT_MAX
    else:
        scale = tl.load(rows.stats + index * 4, mask=exists, other=1.0)
        cutoff = tl.load(rows.stats + index * 4 + 1, mask=exists, other=0.0)
    scale = tl.where(scale == float("inf"), 1.0, scale)  # a greedy row needs no sum, but its NaN must show
    chunks = chunks_of(rows)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z = load_chunk(rows.data, offset, rows.V, tl.zeros([S.ROWS], tl.int32) + c, exists, -float("inf"), S.WIDTH)
        most, total = chunk_sum(z, scale, cutoff)
        tl.store(rows.scratch.maxes + index * chunks + c, most, mask=exists)
        tl.store(rows.scratch.sums + index * chunks + c, total, mask=exists)


@launch.kernel
def stats_kernel(rows, B, G, bonus, D, cu_draft, count, out, S: tl.constexpr):
    first = tl.program_id(0) * S.ROWS
    slot = first + tl.arange(0, S.ROWS)
    b, row, index, exists = locate(slot, rows, B, G, bonus, D, cu_draft, count)
    each = first + tl.arange(0, S.ROWS * S.TOGETHER) // S.TOGETHER
    each_b, each_row, each_index, _ = locate(each, rows, B, G, bonus, D, cu_draft, count)
    chunks = chunks_of(rows)
    block = Block(
        offset_of(rows, b, row), index * chunks, slot.to(tl.int64),
        offset_of(rows, each_b, each_row), each_index * chunks, each.to(tl.int64),
    )  # fmt: skip
    stats = stats_of(rows, b, block, exists, temperature_of(rows, b, exists), S)
    store_stats(out, index, stats, exists)


def scan(rows, layout: launch.Layout, sampling, stats: torch.Tensor | None, store=launch.NO_STORE) -> Scratch:
    """The largest finite logit and the exponential sum of every chunk of the rows of one side."""
    table = launch.table(rows.V)
    scratch = launch.scratch(rows, layout.rows, layout.slots, table.few if sampling.filters() else None)
    if layout.slots:
        per_program = table.per_program(layout.slots)
        grid = (launch.blocks(layout.slots, table.rows), launch.blocks(table.chunk_count, per_program))
        side = launch.rows(rows, stats=stats, sampling=sampling, scratch=scratch, layout=layout, store=store)
        launch.run(scan_kernel, grid, table.wide_threads, side, *layout.arguments(), per_program, S=table.sizes())
    return scratch


def find_stats(
    rows, layout: launch.Layout, sampling, store=launch.NO_STORE, stats: torch.Tensor | None = None
) -> tuple[torch.Tensor, Scratch]:
    """The stats [positions, 4] of one side, in `stats` or in room of their own, and the chunk sums that they were made
    of."""
    scratch = scan(rows, layout, sampling, None, store)
    table = launch.table(rows.V)
    stats = launch.empty(rows, (layout.rows, 4), torch.float32) if stats is None else stats
    if layout.slots:
        side = launch.rows(rows, sampling=sampling, scratch=scratch, layout=layout, store=store)
        grid = (launch.blocks(layout.slots, table.rows),)
        launch.run(stats_kernel, grid, table.row_threads, side, *layout.arguments(), stats, S=table.sizes())
    return stats, scratch


def row_stats(stats, logits, temperature, top_k, top_p, min_p, numbers, num_rows):
    layout = launch.Layout.flat(logits.size(0), num_rows)
    find_stats(row_memory(logits), layout, sampling(temperature, top_k, top_p, min_p, numbers), stats=stats)
    put_absent(num_rows, (stats, 0))

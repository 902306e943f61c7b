# SPDX-License-Identifier: Apache-2.0
"""row_stats: one wide scan of the chunks, then a program per row that turns chunk sums into the four floats."""

import torch
import triton
import triton.language as tl

from . import check, launch
from .cutoff import ONE, crossing, keep, top_k_bound
from .law import CHUNK, FLT_MAX, LOG2E, first_chunk_with, first_lane_with, load_chunk, locate
from .scan import parameter, scale_of, scan_kernel


@triton.jit
def row_max(maxes, sums, at, chunks, exists, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The largest finite logit of the row, and whether the row is no law: NaN, +inf, or nothing finite."""
    top = tl.full([ROWS], -float("inf"), tl.float32)
    bad = tl.zeros([ROWS], tl.int32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        top = tl.maximum(top, tl.max(tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf")), 1))
        s = tl.load(sums + at[:, None] + c, mask=inside, other=0.0)
        bad = tl.maximum(bad, tl.max(tl.where(s < float("inf"), 0, 1), 1))
    return top, (bad > 0) | (top == -float("inf"))


@triton.jit
def row_sum(maxes, sums, at, chunks, top, scale, exists, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """sum of exp((z - top) * scale) over the row, chunk by chunk, in float64."""
    total = tl.zeros([ROWS], tl.float64)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        s = tl.load(sums + at[:, None] + c, mask=inside, other=0.0)
        share = s * tl.exp2((m - top[:, None]) * (scale * LOG2E)[:, None])
        total += tl.sum(tl.where(s > 0, share, 0.0).to(tl.float64), 1)
    return total


@launch.kernel
def law_kernel(
    rows, V, batch_stride, row_stride, B, G, bonus, extra, cu_draft, D, temperature, temperature_stride,
    top_ks, top_k_stride, top_ps, top_p_stride, min_ps, min_p_stride, maxes, sums, listed, few, stats, chunks,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b, index, offset, exists = locate(slot, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D)
    at = index * chunks
    T = parameter(temperature, b, temperature_stride, exists, 1.0)
    top_p = parameter(top_ps, b, top_p_stride, exists, 1.0)
    min_p = parameter(min_ps, b, min_p_stride, exists, 0.0)
    # Data on a device cannot raise, so parameters that make no sense turn the row invalid.
    sane = (T >= 0) & (T <= FLT_MAX) & (top_p > 0) & (top_p <= 1) & (min_p >= 0) & (min_p <= 1)
    scale = scale_of(T)
    greedy = T == 0
    finite_scale = tl.where(greedy, 1.0, scale)
    top, bad = row_max(maxes, sums, at, chunks, exists, ROWS, CHUNKS)
    bad = bad | ~sane
    alive = exists & ~bad & ~greedy

    cutoff = tl.zeros([ROWS], tl.float32) - FLT_MAX
    if few is not None:
        # The same rows, each as often as chunks of it are read at once.
        each = tl.program_id(0) * ROWS + tl.arange(0, ROWS * TOGETHER) // TOGETHER
        _, each_index, each_offset, _ = locate(each, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D)
        sums_at = each_index * chunks
        list_at = each.to(tl.int64) * chunks
        few_at = each.to(tl.int64) * FEW
        slot = slot.to(tl.int64)
        if min_ps is not None:
            on = alive & (min_p > 0)
            least = top.to(tl.float64) + T.to(tl.float64) * tl.log(tl.where(on, min_p, 1.0).to(tl.float64))
            cutoff = tl.where(on, tl.maximum(cutoff, least.to(tl.float32)), cutoff)
        if top_ks is not None:
            top_k = parameter(top_ks, b, top_k_stride, exists, 0).to(tl.int64)
            on = alive & (top_k > 0) & (top_k < V)
            if tl.max(on.to(tl.int32)) > 0:
                bound = top_k_bound(rows, offset, V, maxes, at, chunks, top_k, top, on, ROWS, WIDTH)
                found = crossing(
                    rows, each_offset, V, maxes, sums, at, chunks, listed, list_at, few, few_at, slot, tl.maximum(bound, cutoff), top,
                    finite_scale, top_k.to(tl.float64), on, False, TOGETHER, ROWS, WIDTH, CHUNKS, FEW,
                )  # fmt: skip
                cutoff = tl.where(on, tl.maximum(cutoff, found), cutoff)
        if top_ps is not None:
            on = alive & (top_p < 1)
            if tl.max(on.to(tl.int32)) > 0:
                keep(
                    rows, each_offset, V, maxes, sums, at, sums_at, chunks, listed, list_at, slot, finite_scale, cutoff, on,
                    TOGETHER, ROWS, WIDTH, CHUNKS,
                )  # fmt: skip
                total = row_sum(maxes, sums, at, chunks, top, finite_scale, on, ROWS, CHUNKS)
                # V logits below lo weigh less than 1 - top_p of the total all together: the nucleus ends above them.
                p = top_p.to(tl.float64)
                reach = (tl.log(tl.zeros_like(p) + V) - tl.log(tl.where(on, (1.0 - p) * total, 1.0))) * T.to(tl.float64) * 1.000001
                lo = tl.maximum(cutoff, (top.to(tl.float64) - reach).to(tl.float32))
                found = crossing(
                    rows, each_offset, V, maxes, sums, at, chunks, listed, list_at, few, few_at, slot, lo, top, finite_scale,
                    p * total * ONE, on, True, TOGETHER, ROWS, WIDTH, CHUNKS, FEW,
                )  # fmt: skip
                cutoff = tl.where(on, tl.maximum(cutoff, found), cutoff)
        keep(
            rows, each_offset, V, maxes, sums, at, sums_at, chunks, listed, list_at, slot, finite_scale, cutoff, alive,
            TOGETHER, ROWS, WIDTH, CHUNKS,
        )  # fmt: skip

    total = row_sum(maxes, sums, at, chunks, top, finite_scale, alive, ROWS, CHUNKS)
    log_norm = tl.log(tl.where(alive, total, 1.0)).to(tl.float32)
    argmax = exists & ~bad & greedy
    if tl.max(argmax.to(tl.int32)) > 0:
        c = first_chunk_with(maxes, at, chunks, top, argmax, ROWS, CHUNKS)
        z = load_chunk(rows, offset, V, c, argmax, -float("inf"), WIDTH)
        log_norm = tl.where(argmax, (c * CHUNK + first_lane_with(z, top, WIDTH)).to(tl.float32), log_norm)
        cutoff = tl.where(argmax, top, cutoff)
    out = stats + index * 4
    tl.store(out, scale, mask=exists)
    tl.store(out + 1, cutoff, mask=exists)
    tl.store(out + 2, tl.where(bad, float("nan"), log_norm), mask=exists)
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
    check.dim(op, "logits", logits, 2)
    rows = check.rows(op, "logits", logits)
    sampling = check.sampling(op, "", temperature, top_k, top_p, min_p, logits)
    return laws(rows, launch.Layout.flat(logits.size(0)), sampling)[0]

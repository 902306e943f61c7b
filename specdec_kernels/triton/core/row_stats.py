# SPDX-License-Identifier: Apache-2.0
"""The law of a row from its chunk sums, as a Triton function: the four floats, with every filter."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .filters import ONE, crossing, keep, top_k_bound
from .row import CHUNK, FLT_MAX, LOG2E, first_chunk_with, first_lane_with, load_chunk, scaled, weight_of
from .chunk_sums import is_cold, parameter, scale_of


class Parameters(NamedTuple):
    """The sampling parameters of requests, each with its stride: check.Sampling's arguments."""

    temperature: Any
    temperature_stride: Any
    top_k: Any
    top_k_stride: Any
    top_p: Any
    top_p_stride: Any
    min_p: Any
    min_p_stride: Any


@triton.jit
def row_max(maxes, sums, at, chunks, exists, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The largest finite logit of the row, a zero as +0, and whether the row is no law: NaN, +inf, or nothing finite."""
    top = tl.full([ROWS], -float("inf"), tl.float32)
    bad = tl.zeros([ROWS], tl.int32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        top = tl.maximum(top, tl.max(tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf")), 1))
        s = tl.load(sums + at[:, None] + c, mask=inside, other=0.0)
        bad = tl.maximum(bad, tl.max(tl.where(s < float("inf"), 0, 1), 1))
    return top + 0.0, (bad > 0) | (top == -float("inf"))


@triton.jit
def row_sum(maxes, sums, at, chunks, top, scale, exists, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """sum of exp((z - top) * scale) over the row, chunk by chunk, in float64."""
    total = tl.zeros([ROWS], tl.float64)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        inside = (c < chunks) & exists[:, None]
        m = tl.load(maxes + at[:, None] + c, mask=inside, other=-float("inf"))
        s = tl.load(sums + at[:, None] + c, mask=inside, other=0.0)
        share = s * weight_of(scaled(m, top[:, None], (scale * LOG2E)[:, None]))
        total += tl.sum(tl.where(s > 0, share, 0.0).to(tl.float64), 1)
    return total


@triton.jit
def row_law(
    rows, V, b, slot, each_slot, offset, each_offset, at, sums_at, exists, given, T, maxes, sums, listed, few, chunks,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """scale, cutoff, log_norm and max of the rows at `offset`, of the requests b. `slot` says which scratch they filter in; what
    comes as each_ or sums_ is of the same rows, each as often as chunks of it are read at once."""
    top_p = parameter(given.top_p, b, given.top_p_stride, exists, 1.0)
    min_p = parameter(given.min_p, b, given.min_p_stride, exists, 0.0)
    # Data on a device cannot raise, so parameters that make no sense turn the row invalid.
    sane = (T >= 0) & (T <= FLT_MAX) & (top_p > 0) & (top_p <= 1) & (min_p >= 0) & (min_p <= 1)
    scale = scale_of(T)
    greedy = is_cold(T)
    finite_scale = tl.where(greedy, 1.0, scale)
    top, bad = row_max(maxes, sums, at, chunks, exists, ROWS, CHUNKS)
    bad = bad | ~sane
    alive = exists & ~bad & ~greedy

    cutoff = tl.zeros([ROWS], tl.float32) - FLT_MAX
    if few is not None:
        list_at = each_slot * chunks
        few_at = each_slot * FEW
        if given.min_p is not None:
            on = alive & (min_p > 0)
            least = top.to(tl.float64) + T.to(tl.float64) * tl.log(tl.where(on, min_p, 1.0).to(tl.float64))
            cutoff = tl.where(on, tl.maximum(cutoff, least.to(tl.float32)), cutoff)
        if given.top_k is not None:
            top_k = parameter(given.top_k, b, given.top_k_stride, exists, 0).to(tl.int64)
            on = alive & (top_k > 0) & (top_k < V)
            if tl.max(on.to(tl.int32)) > 0:
                bound = top_k_bound(rows, offset, V, maxes, at, chunks, top_k, top, on, ROWS, WIDTH)
                found = crossing(
                    rows, each_offset, V, maxes, sums, at, chunks, listed, list_at, few, few_at, slot, tl.maximum(bound, cutoff), top,
                    finite_scale, top_k.to(tl.float64), on, False, TOGETHER, ROWS, WIDTH, CHUNKS, FEW,
                )  # fmt: skip
                cutoff = tl.where(on, tl.maximum(cutoff, found), cutoff)
        if given.top_p is not None:
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
    return scale, cutoff + 0.0, tl.where(bad, float("nan"), log_norm), top

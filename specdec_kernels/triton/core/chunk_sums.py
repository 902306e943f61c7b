# SPDX-License-Identifier: Apache-2.0
"""The one wide launch: every chunk of every row, its largest finite logit and its sum of exponentials relative to it."""

import triton
import triton.language as tl

from . import launch
from .row import FLT_MAX, chunk_sum, load_chunk, locate


@triton.jit
def parameter(values, b, stride, exists, off):
    """A sampling parameter of the requests b: its values, or `off` where none are given."""
    if values is None:
        return tl.zeros(b.shape, tl.float32) + off
    else:
        return tl.load(values + b.to(tl.int64) * stride, mask=exists, other=off)


@triton.jit
def is_cold(temperature):
    """Greedy: a subnormal temperature is one of 0, since its inverse would overflow."""
    return (temperature >= 0) & (temperature < 1.1754943508222875e-38)


@triton.jit
def scale_of(temperature):
    """1 / T rounded once, at most 2^126, so that 2 scale log2(e) is finite; infinity is the mark of a greedy row."""
    cold = is_cold(temperature)
    return tl.where(cold, float("inf"), (1.0 / tl.where(cold, 1.0, temperature).to(tl.float64)).to(tl.float32))


@launch.kernel
def scan_kernel(
    rows, V, batch_stride, row_stride, B, G, bonus, extra, cu_draft, D, temperature, temperature_stride,
    stats, maxes, sums, chunks, per_program, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b, index, offset, exists = locate(slot, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D)
    if stats is None:
        scale = scale_of(parameter(temperature, b, temperature_stride, exists, 1.0))
        cutoff = tl.zeros([ROWS], tl.float32) - FLT_MAX
    else:
        scale = tl.load(stats + index * 4, mask=exists, other=1.0)
        cutoff = tl.load(stats + index * 4 + 1, mask=exists, other=0.0)
    scale = tl.where(scale == float("inf"), 1.0, scale)  # a greedy row needs no sum, but its NaN must show
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z = load_chunk(rows, offset, V, tl.zeros([ROWS], tl.int32) + c, exists, -float("inf"), WIDTH)
        most, total = chunk_sum(z, scale, cutoff)
        tl.store(maxes + index * chunks + c, most, mask=exists)
        tl.store(sums + index * chunks + c, total, mask=exists)

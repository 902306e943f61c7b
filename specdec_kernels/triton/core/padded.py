# SPDX-License-Identifier: Apache-2.0
"""Padded buffers, in which only the first requests or rows are there (Present of csrc/core/views.h). Kernels take the
others for what lies beyond their grid, and launches of their own write what those give."""

import triton
import triton.language as tl

from . import launch


@triton.jit
def is_present(count, b):
    """`count`: [1], or None where all are there."""
    if count is None:
        return b == b
    else:
        return b < tl.load(count)


@launch.kernel
def absent_kernel(out, count, N, columns, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = at // columns
    tl.store(out + at, tl.full([BLOCK], VALUE, tl.int32), mask=(row < N) & ~is_present(count, row))


def put_absent(count, *results) -> None:
    """Fills results [N, ...], each given with its value, where their row or request is absent."""
    if count is None:
        return
    for out, value in results:
        if out.numel():
            N, size = out.size(0), launch.elements()
            args = (out, count, N, out.numel() // N)
            launch.run(absent_kernel, (launch.blocks(out.numel(), size),), 128, *args, VALUE=value, BLOCK=size)

# SPDX-License-Identifier: Apache-2.0
"""One value of each of a program's rows, to and from memory.

Where a program serves one row these are accesses of scalars: Triton's coalescing pass compares every access of a tensor
with the whole kernel, again and again, and a walk down a tree by a rule took it two minutes.
"""

import triton
import triton.language as tl

SCALARS = tl.constexpr(not triton.knobs.runtime.interpret)  # the interpreter has none of one entry


@triton.jit
def get_value(at, mask, other):
    """tl.load of [ROWS] addresses."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        x = tl.load(at.item(), mask=mask.item(), other=other)
        return tl.full(at.shape, x, x.dtype)
    else:
        return tl.load(at, mask=mask, other=other)


@triton.jit
def put_value(at, x, mask):
    """tl.store to [ROWS] addresses."""
    if SCALARS and at.numel == 1 and mask.numel == 1:
        tl.store(at.item(), x.item(), mask=mask.item())
    else:
        tl.store(at, x, mask=mask)

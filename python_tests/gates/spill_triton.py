# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel that the gates must refuse: a row of 32,768 floats, held by one warp across a reduction."""

import triton
import triton.language as tl


@triton.jit
def spills_kernel(x, out, V: tl.constexpr):
    at = tl.arange(0, V)
    row = tl.load(x + at)
    tl.store(out + at, row - tl.sum(row * row, 0))


def cases():
    from support.aot import Case

    attributes = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}
    yield Case(
        "spills", spills_kernel, {"x": "*fp32", "out": "*fp32", "V": "constexpr"}, {(2,): 32_768}, attributes, 32, True
    )

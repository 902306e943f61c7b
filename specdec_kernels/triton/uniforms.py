# SPDX-License-Identifier: Apache-2.0
"""uniforms: the random numbers of (seed, offset, domain, slot), one per element."""

import triton.language as tl

from .core import launch
from .core.draw import uniform


@launch.kernel
def uniforms_kernel(seed, seed_stride, offset, offset_stride, out, B, n, domain, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = at // n
    inside = b < B
    s = tl.load(seed + b * seed_stride, mask=inside, other=0).to(tl.int64)
    o = tl.load(offset + b * offset_stride, mask=inside, other=0).to(tl.int64)
    tl.store(out + at, uniform(s, o, domain, at - b * n), mask=inside)


def uniforms(u, seed, offset, n, domain):
    args = (seed, seed.stride(0), offset, offset.stride(0), u, u.size(0), n, domain)
    launch.run_elements(uniforms_kernel, u.numel(), *args)

# SPDX-License-Identifier: Apache-2.0
"""uniforms: the random numbers of (seed, offset, domain, slot), one per element."""

import torch
import triton.language as tl

from .core import check, launch
from .core.philox import uniform


@launch.kernel
def uniforms_kernel(seed, seed_stride, offset, offset_stride, out, B, n, domain, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b = at // n
    inside = b < B
    s = tl.load(seed + b * seed_stride, mask=inside, other=0).to(tl.int64)
    o = tl.load(offset + b * offset_stride, mask=inside, other=0).to(tl.int64)
    tl.store(out + at, uniform(s, o, domain, at - b * n), mask=inside)


def uniforms(seed, offset, n, domain):
    op = "uniforms"
    check.given(op, seed=seed, offset=offset)
    check.dim(op, "seed", seed, 1)
    B = seed.size(0)
    check.shape(op, "offset", offset, B)
    check.that(n >= 0, op, f"n must be >= 0, got {n}")
    check.that(n <= 1 << 33, op, f"n must be at most 2^33, got {n}")
    check.that(0 <= domain < 1 << 32, op, f"domain must be in [0, 2^32), got {domain}")
    check.integers(op, "seed", seed, seed)
    check.integers(op, "offset", offset, seed)

    u = torch.empty((B, n), dtype=torch.float64, device=seed.device)
    if u.numel():
        block = launch.elements()
        args = (seed, seed.stride(0), offset, offset.stride(0), u, B, n, domain)
        launch.run(uniforms_kernel, (launch.blocks(u.numel(), block),), 128, *args, BLOCK=block)
    return u

# SPDX-License-Identifier: Apache-2.0
"""accept: the acceptance test alone, elementwise."""

import torch
import triton.language as tl

from .core import check, launch
from .core.philox import given_uniform
from .core.rows import accept_test


@launch.kernel
def accept_kernel(p, q, u, out, n, IDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    drawn = tl.load(q + at, mask=inside, other=0)
    # Of integer ids, 1 for a one-hot draft and 0 for a missing one.
    q_d = (drawn >= 0).to(tl.float64) if IDS else drawn.to(tl.float64)
    p_d = tl.load(p + at, mask=inside, other=0).to(tl.float64)
    tl.store(out + at, accept_test(p_d, q_d, given_uniform(tl.load(u + at, mask=inside, other=0))), mask=inside)


def accept(p, q, u):
    op = "accept"
    check.given(op, p=p, q=q, u=u)
    for name, t in (("q", q), ("u", u)):
        check.shape(op, name, t, *p.shape)
    check.dtype(op, "u", u, torch.float64)
    ids = q.dtype in check.INTEGERS
    floats = (*check.ROWS, torch.float64)
    check.that(p.dtype in floats, op, f"p must be floating point, got {check.dtype_name(p)}")
    check.that(ids or q.dtype in floats, op, f"q must be floating point, int32 or int64, got {check.dtype_name(q)}")
    for name, t in (("p", p), ("q", q), ("u", u)):
        check.contiguous(op, name, t)
        check.device(op, name, t, p)

    accepted = torch.empty(p.shape, dtype=torch.bool, device=p.device)
    if p.numel():
        block = launch.elements()
        launch.run(
            accept_kernel, (launch.blocks(p.numel(), block),), 128, p, q, u, accepted, p.numel(), IDS=ids, BLOCK=block
        )
    return accepted

# SPDX-License-Identifier: Apache-2.0
"""accept: the acceptance test alone, elementwise."""

import triton.language as tl

from .core import launch
from .core.arguments import INTEGERS
from .core.draw import given_uniform
from .core.rows import accept_test


@launch.kernel
def accept_kernel(p, q, u, out, n, IDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    drawn = tl.load(q + at, mask=inside, other=0)
    # If q has ids, the draft is one-hot with q = 1; a negative id is a missing draft with q = 0.
    q_d = (drawn >= 0).to(tl.float64) if IDS else drawn.to(tl.float64)
    p_d = tl.load(p + at, mask=inside, other=0).to(tl.float64)
    tl.store(out + at, accept_test(p_d, q_d, given_uniform(tl.load(u + at, mask=inside, other=0))), mask=inside)


def accept(accepted, p, q, u):
    launch.run_elements(accept_kernel, p.numel(), p, q, u, accepted, p.numel(), IDS=q.dtype in INTEGERS)

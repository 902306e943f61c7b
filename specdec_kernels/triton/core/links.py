# SPDX-License-Identifier: Apache-2.0
"""What rejections left of a law, step by step, in memory: csrc/core/residual.h's Link for a block of requests."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .row import FLT_MAX
from .side import packed, unpacked

INTS = tl.constexpr(2)  # of a link
FLOATS = tl.constexpr(7)


class Link(NamedTuple):
    """One step of a chain: r(v) becomes (x - s * min(q(v), cap * x))+ with x = m * r(v). One-hot q: its token keeps nothing;
    nothing: r becomes m * r."""

    q: Any
    m: Any
    s: Any
    cap: Any
    gone: Any  # a token that the q of the links behind this one no longer hold


class Chain(NamedTuple):
    """p of the requests b after their n links, the first at `at`; not normalised."""

    b: Any
    p: Any
    at: Any
    n: Any


class Rows(NamedTuple):
    """Both sides and the scratch of chains."""

    target: Any
    draft: Any
    ints: Any  # [links, INTS]
    floats: Any  # [links, FLOATS]
    masses: Any  # [B, chunks of the target]
    BLENDS: Any  # whether a law pi of p and q may stand for p: see blend.py


@triton.jit
def put_link(rows, at, link, mask):
    """Between two barriers: every thread may read it next."""
    tl.debug_barrier()
    ints = rows.ints + at * INTS
    tl.store(ints, packed(link.q), mask=mask)
    tl.store(ints + 1, link.gone, mask=mask)
    floats = rows.floats + at * FLOATS
    tl.store(floats, link.q.scale, mask=mask)
    tl.store(floats + 1, link.q.cutoff, mask=mask)
    tl.store(floats + 2, link.q.log_norm, mask=mask)
    tl.store(floats + 3, link.q.most, mask=mask)
    tl.store(floats + 4, link.m, mask=mask)
    tl.store(floats + 5, link.s, mask=mask)
    tl.store(floats + 6, link.cap, mask=mask)
    tl.debug_barrier()


@triton.jit
def get_link(rows, at, mask):
    ints = rows.ints + at * INTS
    floats = rows.floats + at * FLOATS
    q = unpacked(
        tl.load(ints, mask=mask, other=0), tl.load(floats, mask=mask, other=1.0), tl.load(floats + 1, mask=mask, other=1.0),
        tl.load(floats + 2, mask=mask, other=1.0), tl.load(floats + 3, mask=mask, other=1.0),
    )  # fmt: skip
    m = tl.load(floats + 4, mask=mask, other=1.0)
    s = tl.load(floats + 5, mask=mask, other=1.0)
    return Link(q, m, s, tl.load(floats + 6, mask=mask, other=1.0), tl.load(ints + 1, mask=mask, other=-1))


@triton.jit
def subtracting(q, m, s, gone):
    return Link(q, m, s, tl.zeros_like(m) + FLT_MAX, gone)

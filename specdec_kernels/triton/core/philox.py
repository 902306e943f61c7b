# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon et al., SC'11), stateless: csrc/core/philox.h."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value
from .row import load_value

DOMAIN_ACCEPT = tl.constexpr(0)
DOMAIN_FINAL = tl.constexpr(1)
DOMAIN_DRAFT = tl.constexpr(2)


@triton.jit
def uniform(seed, offset, domain, slot):
    """A 53-bit uniform in [0, 1): slot i takes word pair (i & 1) of block i >> 1, its low 33 bits count. All int64,
    words kept in their low halves."""
    low: tl.constexpr = 0xFFFFFFFF
    w0 = (slot >> 1) & low
    w1 = offset & low
    w2 = (offset >> 32) & low
    w3 = tl.zeros_like(w0) + domain
    key0 = seed & low
    key1 = (seed >> 32) & low
    for _ in tl.static_range(10):
        a = w0.to(tl.uint64) * 0xD2511F53
        b = w2.to(tl.uint64) * 0xCD9E8D57
        w0 = (b >> 32).to(tl.int64) ^ w1 ^ key0
        w1 = b.to(tl.int64) & low
        w2 = (a >> 32).to(tl.int64) ^ w3 ^ key1
        w3 = a.to(tl.int64) & low
        key0 = (key0 + 0x9E3779B9) & low
        key1 = (key1 + 0xBB67AE85) & low
    odd = (slot & 1) == 1
    high = tl.where(odd, w2, w0)
    bits = (high << 21) | (tl.where(odd, w3, w1) >> 11)
    return bits.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def given_uniform(u):
    """A uniform that a caller gave: what lies outside [0, 1) counts as the nearer end, NaN as 0."""
    return tl.where(u > 0, tl.where(u < 1, u, tl.full(u.shape, 1 - 2.0**-53, tl.float64)), 0.0)


class Random(NamedTuple):
    """What uniforms come from: seeds and offsets, or the uniforms themselves. With neither, nothing is drawn."""

    seed: Any  # Values
    offset: Any
    uniforms: Any  # [B, columns]


@triton.jit
def uniform_of(random, b, column, columns, domain, slot, mask):
    """Of the requests b: the uniform in a column of the given ones, or that of a slot of a domain."""
    if random.uniforms is not None:
        return given_uniform(get_value(random.uniforms + b * columns + column, mask, 0.0))
    elif random.seed.data is not None:
        seed = load_value(random.seed, b, mask, 0).to(tl.int64)
        offset = load_value(random.offset, b, mask, 0).to(tl.int64)
        return uniform(seed + slot * 0, offset + slot * 0, domain, slot + b * 0)
    else:
        return tl.zeros_like(b * slot).to(tl.float64)

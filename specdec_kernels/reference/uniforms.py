# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") and uniforms made from it."""

import numpy as np
import torch

from ..registry import DOMAIN_ACCEPT

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
W0, W1 = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Return the 4 output words. counter: 4 words, key: 2 words, each a number below 2^32 or an array of them."""
    c = [np.asarray(word, dtype=np.uint64) for word in counter]
    k = [np.asarray(word, dtype=np.uint64) for word in key]
    for _ in range(10):
        a, b = M0 * c[0], M1 * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & LOW, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & LOW]
        k = [(k[0] + np.uint64(W0)) & LOW, (k[1] + np.uint64(W1)) & LOW]
    return c


def given(u):
    """Return a caller's uniforms (float64 numpy), clamped to [0, 1); NaN becomes 0."""
    return np.clip(np.nan_to_num(u, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1 - 2.0**-53)


def uniforms(seed, offset, n, domain=DOMAIN_ACCEPT, first=None):
    """Return uniforms [B, n] float64 in [0, 1) of seed [B] int64 and offset [B] int64.

    Slot i is the top 53 bits of word pair i & 1 of block i >> 1. Column j has slot first[b] + j, of which the low 33
    bits count.
    """
    s = seed.numpy().astype(np.uint64)[:, None]
    o = offset.numpy().astype(np.uint64)[:, None]
    slot = np.arange(n, dtype=np.uint64)[None, :]
    if first is not None:
        slot = slot + first.numpy().astype(np.uint64)[:, None] & np.uint64((1 << 33) - 1)
    zero = np.zeros(np.broadcast_shapes(s.shape, slot.shape), dtype=np.uint64)
    high = np.uint64(32)
    w = philox(
        ((slot >> np.uint64(1)) + zero, (o & LOW) + zero, (o >> high) + zero, zero + np.uint64(domain)),
        (s & LOW, s >> high),
    )
    odd = (slot & np.uint64(1)) == 1
    first, second = np.where(odd, w[2], w[0]), np.where(odd, w[3], w[1])
    return torch.from_numpy((((first << high) | second) >> np.uint64(11)).astype(np.float64) * 2.0**-53)

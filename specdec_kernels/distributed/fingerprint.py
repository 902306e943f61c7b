# SPDX-License-Identifier: Apache-2.0
"""A 64-bit fingerprint of a tensor's contents, computed on its device. Ranks compare it instead of the tensor.

It is a sum of words times odd pseudo-random weights, modulo 2^64: along each row, then over the rows. It depends on
every bit and its position, but not on strides or on how the sums are split. Two different tensors have the same
fingerprint only by chance.
"""

from __future__ import annotations

import torch

from specdec_kernels.seeds import signed

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by bytes per entry
_BLOCK = {"cpu": 1 << 16}  # products at once: on a CPU as many as a cache holds, elsewhere enough for a launch
_BLOCK_ELSEWHERE = 1 << 24


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """Return the fingerprint: an int64 scalar on x's device."""
    words = _words(x.detach())
    if words.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    words = words if words.dim() else words[None]
    block = _BLOCK.get(x.device.type, _BLOCK_ELSEWHERE)
    n = words.size(-1)
    sums = _row_sums(words, _weights(0, n, x.device), block)
    # Fold high bits into low ones, since a product carries a change only upwards. Without this, flips of the highest
    # bit of two words in different rows would cancel with probability 2^-32, as two in one row do. Equal changes to a
    # block of rows and columns would cancel more often: the weight of a block is a product of two sums, and their
    # powers of two multiply.
    sums = sums ^ (sums >> 31)
    return (sums * _weights(n, sums.numel(), x.device)).sum()


def _words(x):
    """Return x [..., n] as integers of at most 32 bits.

    With 64-bit words, a flip of the highest bit would add 2^63 under every odd weight, so two such flips would cancel.
    """
    if x.element_size() > 4:
        x = x.view(torch.int64)
        return torch.cat((x >> 32, x & 0xFFFFFFFF), -1) if x.dim() else torch.stack((x >> 32, x & 0xFFFFFFFF))
    return x.view(_WORDS[x.element_size()])


def _row_sums(words, weights, block):
    """Return the weighted sums over the last dimension, flattened to [rows]."""
    if words.dim() > 1 and words.numel() > block:
        return torch.cat([_row_sums(part, weights, block) for part in words])
    return (words * weights).sum(-1).view(-1)


def _weights(first, n, device):
    """Return n odd int64 weights: the outputs of splitmix64 from index `first` on, each with its lowest bit set to
    1."""
    x = torch.arange(first + 1, first + n + 1, dtype=torch.int64, device=device) * signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * signed(factor)
    return x ^ (x >> 31) | 1

# SPDX-License-Identifier: Apache-2.0
"""One number for what a tensor holds, made where it lies: ranks compare it in place of the tensor.

Sums of words times odd pseudo-random weights, modulo 2^64. They depend on every bit and on its place, but not on
strides or on how the sums are split. That two tensors which differ have one number is a matter of chance.
"""

from __future__ import annotations

import torch

from specdec_kernels.seeds import signed

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by the bytes of an entry
_BLOCK = {"cpu": 1 << 16}  # products at a time: what a cache holds, and on a GPU what is worth a launch
_BLOCK_ELSEWHERE = 1 << 24


def fingerprint(x: torch.Tensor) -> torch.Tensor:
    """[] int64, on x's device."""
    words = _words(x.detach())
    if words.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    words = words if words.dim() else words[None]
    block = _BLOCK.get(x.device.type, _BLOCK_ELSEWHERE)
    n = words.size(-1)
    sums = _row_sums(words, _weights(0, n, x.device), block)
    sums = sums ^ (sums >> 31)  # not linear, or entry [i, j] would count as [j, i] does
    return (sums * _weights(n, sums.numel(), x.device)).sum()


def _words(x):
    """x [..., n] as integers of at most 32 bits: the highest of 64 bits times any odd number is itself."""
    if x.element_size() > 4:
        x = x.view(torch.int64)
        return torch.cat((x >> 32, x & 0xFFFFFFFF), -1) if x.dim() else torch.stack((x >> 32, x & 0xFFFFFFFF))
    return x.view(_WORDS[x.element_size()])


def _row_sums(words, weights, block):
    """[rows], whatever the dimensions in front of the last are."""
    if words.dim() > 1 and words.numel() > block:
        return torch.cat([_row_sums(part, weights, block) for part in words])
    return (words * weights).sum(-1).view(-1)


def _weights(first, n, device):
    """[n] int64, odd: the numbers of splitmix64 from one on."""
    x = torch.arange(first + 1, first + n + 1, dtype=torch.int64, device=device) * signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * signed(factor)
    return x ^ (x >> 31) | 1

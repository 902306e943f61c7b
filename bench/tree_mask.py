# SPDX-License-Identifier: Apache-2.0
"""Benchmark of tree_mask against eager torch, which goes up one level at a time and marks each node's ancestor there.

Bytes: parents read; mask, depth and positions written.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for B, N, keys, format, calls in (
        (1, 64, None, "bool", 100),
        (64, 64, None, "uint32", 20),
        (64, 64, 2048, "bool", 1),
        (64, 64, 2048, "additive", 1),
        (64, 64, 2048, "uint8", 1),
        (8, 1024, None, "bool", 1),
        (8, 1024, None, "uint64", 1),
    ):
        yield Case(
            f"B={B} N={N}{f' keys={keys}' if keys else ''} {format}", partial(_masks, B, N, keys, format, calls, device)
        )


def _masks(B: int, N: int, keys: int | None, format: str, calls: int, device: str) -> Work:
    """Return the work of one shape, with trees of 12 to 22 levels: a node's parent is at most N / 5 before it."""
    generator = torch.Generator().manual_seed(N)
    nodes = torch.arange(N)
    low = (nodes - N // 5).clamp(min=0)
    parents = (low + torch.rand(B, N, generator=generator) * (nodes - low)).int()
    parents[:, 0] = -1
    prefix = torch.randint(0, max(1, (keys or 1) - N), (B,), generator=generator)
    x = SimpleNamespace(parents=parents.to(device), prefix=prefix.to(device))
    dtype = torch.bfloat16

    def ours(x):
        return sk.tree_mask(x.parents, x.prefix, format, num_keys=keys, dtype=dtype)

    columns = keys or N
    bits = {"bool": 8, "additive": 16}.get(format, 1)
    work = Work(x, ours, B * (N * columns * bits // 8 + N * 16), calls=calls, outcome=lambda out: float(out[1].sum()))
    if format in ("bool", "additive"):
        depth = int(sk.tree_mask(parents).depth.max())  # the number of levels, which eager torch needs
        work.peers["eager"] = lambda x: eager(x.parents, x.prefix, depth, keys, dtype if format == "additive" else None)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("tree_mask", ours, device))
    return work


def eager(parents: torch.Tensor, prefix: torch.Tensor, levels: int, keys: int | None, dtype: torch.dtype | None):
    """Compute the same mask and depth in plain torch."""
    B, N = parents.shape
    nodes = torch.arange(N, device=parents.device)
    mask = (nodes[:, None] == nodes).repeat(B, 1, 1)
    at, depth = parents.long(), torch.zeros_like(parents)
    for _ in range(levels):
        mask |= (at[:, :, None] == nodes) & (at >= 0)[:, :, None]
        depth += at >= 0
        at = torch.where(at >= 0, parents.long().gather(1, at.clamp(min=0)), -1)
    if keys is not None:
        column = torch.arange(keys, device=parents.device)
        node = column - prefix[:, None]
        tree = mask.gather(2, node.clamp(0, N - 1)[:, None].expand(-1, N, -1))
        mask = torch.where(
            ((node >= 0) & (node < N))[:, None], tree, (column < prefix[:, None])[:, None] & mask[:, :, :1]
        )
    if dtype is not None:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return mask, depth

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of budget against eager torch, which sorts all slots.

Bytes: survival read once, the result written.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for B, G, calls in ((8, 5, 200), (64, 5, 100), (256, 8, 50), (1024, 16, 10)):
        yield Case(f"B={B} G={G}", partial(_batch, B, G, calls, device))


def _batch(B: int, G: int, calls: int, device: str) -> Work:
    """Return the work of a batch that has room for half of its drafts."""
    survival = (torch.rand(B, G, generator=torch.Generator().manual_seed(B)) / 2 + 0.5).cumprod(1)
    x = SimpleNamespace(survival=survival.to(device))
    total = B * G // 2

    def ours(x):
        return sk.budget(x.survival, total)

    peers = {"eager": lambda x: eager(x.survival, total)}
    moved = 4 * B * G + 4 * B
    work = Work(x, ours, moved, peers=peers, calls=calls, outcome=lambda kept: float((kept**2).sum()))
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("budget", ours, device))
    return work


def eager(survival: torch.Tensor, total: int) -> torch.Tensor:
    """Spread the budget in plain torch, without waiting for the device."""
    B, G = survival.shape
    by_position = survival.cummin(1).values.t().reshape(-1)  # so that a stable sort puts earlier positions first
    order = by_position.sort(descending=True, stable=True).indices[:total]
    return torch.zeros(B, dtype=torch.int64, device=survival.device).index_add_(0, order % B, torch.ones_like(order))

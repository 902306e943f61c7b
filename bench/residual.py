# SPDX-License-Identifier: Apache-2.0
"""Benchmark of residual against eager torch. Bytes: p and q read, the float32 row written."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import triton


def eager(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r = (p.float() - q.float()).clamp_(min=0)
    mass = r.sum(-1, keepdim=True)
    return r.div_(mass), mass


def cases(device: str) -> Cases:
    N = 32 if device == "cpu" else 64
    for dtype in ("fp32", "bf16"):
        for V in (32000, 151936):
            yield Case(f"N={N} V={V} {dtype}", partial(_rows, N, V, dtype, device))


def _rows(N: int, V: int, dtype: str, device: str) -> Work:
    p, q = (logits(N, V, dtype=torch.float32, device=device, seed=s).softmax(-1).to(DTYPES[dtype]) for s in (0, 1))
    x = SimpleNamespace(p=p, q=q)

    def ours(x):
        return sk.residual(x.p, x.q)

    work = Work(x, ours, 2 * p.nbytes + 4 * p.numel(), p.nbytes + q.nbytes)
    work.peers["eager"] = lambda x: eager(x.p, x.q)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("residual", ours, device))
    return work

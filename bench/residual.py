# SPDX-License-Identifier: Apache-2.0
"""residual against eager torch. Bytes: p and q read, the float32 row written."""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits

N = 32



def eager(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r = (p.float() - q.float()).clamp_(min=0)
    mass = r.sum(-1, keepdim=True)
    return r.div_(mass), mass


def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for V in (32000, 151936):
            yield Case(f"N={N} V={V} {dtype}", partial(_rows, V, dtype, device))


def _rows(V: int, dtype: str, device: str) -> Work:
    p, q = (logits(N, V, dtype=torch.float32, device=device, seed=s).softmax(-1).to(DTYPES[dtype]) for s in (0, 1))
    return Work(lambda: sk.residual(p, q), 2 * p.nbytes + 4 * p.numel(), {"eager": lambda: eager(p, q)})

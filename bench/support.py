# SPDX-License-Identifier: Apache-2.0
"""Benchmark of support with given stats, against eager torch (comparison with the cutoff, bits, counts, and
the lowest ids by topk).

Bytes: each row once, its bits, and the ids.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import triton

MAX_KEPT = 256


def cases(device: str) -> Cases:
    for N in (8,) if device == "cpu" else (64, 8):
        for dtype in ("fp32", "bf16"):
            for V in (32000, 151936):
                yield Case(f"N={N} V={V} {dtype}", partial(_kept, N, V, dtype, device))


def eager(x: SimpleNamespace) -> tuple[torch.Tensor, ...]:
    kept = x.logits >= x.stats[:, 1:2]
    padded = torch.nn.functional.pad(kept, (0, -kept.size(1) % 32)).view(len(kept), -1, 32)
    bits = (padded.int() << torch.arange(32, dtype=torch.int32, device=kept.device)).sum(-1, dtype=torch.int32)
    V = kept.size(1)
    ids = torch.where(kept, torch.arange(V, device=kept.device), V).topk(MAX_KEPT, largest=False).values
    return torch.where(ids < V, ids, -1), kept.sum(1), bits


def _kept(N: int, V: int, dtype: str, device: str) -> Work:
    rows = logits(N, V, dtype=DTYPES[dtype], device=device, seed=V)
    x = SimpleNamespace(logits=rows, stats=sk.row_stats(sk.Rows(rows, top_k=50, top_p=0.9)))

    def ours(x):
        return sk.support(sk.Rows(x.logits, stats=x.stats), MAX_KEPT)

    work = Work(x, ours, rows.nbytes + N * (V // 8 + 4 * MAX_KEPT))
    work.peers["eager"] = eager
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("support", ours, device))
    return work

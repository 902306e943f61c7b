# SPDX-License-Identifier: Apache-2.0
"""Benchmark of row_topw against the usual beam search step: log_softmax in float32, adding the score, topk.

Bytes: each row once. The chunks of 1024 that contain the best ids, usually at most w, are read again. The score is
-100, as of a long beam, so the rounded sums of many ids are close.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import triton


def cases(device: str) -> Cases:
    for N in (8,) if device == "cpu" else (64, 8):
        for dtype in ("fp32", "bf16"):
            for V in (32000, 151936):
                for w in (1, 4, 16):
                    yield Case(f"N={N} V={V} {dtype} w={w}", partial(_best, N, V, dtype, w, device))


def eager(x: SimpleNamespace, w: int) -> tuple[torch.Tensor, ...]:
    best = (x.logits.float().log_softmax(-1) + x.score[:, None]).topk(w)
    return best.values, best.indices


def _best(N: int, V: int, dtype: str, w: int, device: str) -> Work:
    rows = logits(N, V, dtype=DTYPES[dtype], device=device, seed=V)
    x = SimpleNamespace(logits=rows, score=torch.full((N,), -100.0, device=device))

    def ours(x):
        return sk.row_topw(x.logits, x.score, w)

    work = Work(x, ours, rows.nbytes + N * (4 + w * 12), min(w, -(-V // 1024)) * 1024 * rows.element_size() * N)
    work.peers["eager"] = partial(eager, w=w)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("row_topw", ours, device))
    return work

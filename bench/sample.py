# SPDX-License-Identifier: Apache-2.0
"""Benchmark of sample against softmax + multinomial, and of a race against row_stats, its noise and Gumbel's trick.

Bytes: each row once (the chunk of the drawn id is read again); of a race, each row twice.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import flashinfer, triton


def cases(device: str) -> Cases:
    for N in (32,) if device == "cpu" else (64, 1):
        for dtype in ("fp32", "bf16") if N != 1 else ("bf16",):
            for V in (32000, 151936):
                for k, replacement in ((1, True), (4, True), (4, False)):
                    label = f"N={N} V={V} {dtype} k={k}{'' if replacement else ' without replacement'}"
                    yield Case(label, partial(_draws, N, V, dtype, k, replacement, device))
    for N, V in ((8, 151936), (8, 32000)) if device == "cpu" else ((64, 151936), (1, 151936)):
        for k in (1, 4):
            yield Case(f"N={N} V={V} bf16 k={k} race", partial(_race, N, V, k, device))


def _draws(N: int, V: int, dtype: str, k: int, replacement: bool, device: str) -> Work:
    x = SimpleNamespace(logits=logits(N, V, dtype=DTYPES[dtype], device=device, seed=V))
    x.seed, x.offset = torch.arange(N, device=device), torch.zeros(N, dtype=torch.int64, device=device)

    def ours(x):
        return sk.sample(x.logits, k=k, replacement=replacement, seed=x.seed, offset=x.offset)

    work = Work(x, ours, x.logits.nbytes)
    work.peers["multinomial"] = lambda x: x.logits.softmax(-1, dtype=torch.float32).multinomial(k, replacement)
    if device == "cuda":
        if k == 1:
            work.peer("flashinfer", flashinfer.sample)
        work.peer("ours in triton", lambda: triton.same("sample", ours, device))
    return work


def _race(N: int, V: int, k: int, device: str) -> Work:
    """Time a race. Its noise alone is V random doubles and V logarithms a row; ours computes few of either."""
    x = SimpleNamespace(logits=logits(N, V, dtype=torch.bfloat16, device=device, seed=V))
    x.seed, x.offset = torch.arange(N, device=device), torch.zeros(N, dtype=torch.int64, device=device)
    work = Work(x, lambda x: sk.sample(x.logits, k, race=True, seed=x.seed, offset=x.offset), 2 * x.logits.nbytes)
    work.peers["row_stats"] = lambda x: sk.row_stats(x.logits)
    work.peers["noise alone"] = lambda x: torch.rand(N, V, dtype=torch.float64, device=device).log_()
    work.peers["Gumbel"] = lambda x: (
        x.logits.log_softmax(-1, dtype=torch.float32)
        .sub_(torch.empty(N, V, device=device).exponential_().log_())
        .topk(k)
    )
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("sample", work.ours, device))
    return work

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of top_logprobs with given stats, against float32 log_softmax, topk, gather and comparison, as in engines.

Bytes: each row once. A GPU reads the chunks that contain the best ids again, usually at most k. For k = V it reads the
row a few times for every 4096 ids.
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
                for k in (0, 5, 20, 1000):
                    yield Case(f"N={N} V={V} {dtype} k={k}", partial(_best, N, V, dtype, k, device))
    yield Case("N=8 V=32000 fp32 k=V", partial(_best, 8, 32000, "fp32", 32000, device))


def eager(x: SimpleNamespace, k: int) -> tuple[torch.Tensor, ...]:
    law = x.logits.float().log_softmax(-1)
    of_token = law.gather(1, x.tokens)
    best = law.topk(k)
    return best.indices, best.values, of_token, (law >= of_token).sum(1, keepdim=True)


def _best(N: int, V: int, dtype: str, k: int, device: str) -> Work:
    rows = logits(N, V, dtype=DTYPES[dtype], device=device, seed=V)
    tokens = rows.float().softmax(-1).multinomial(1)
    x = SimpleNamespace(logits=rows, stats=sk.row_stats(rows), tokens=tokens)

    def ours(x):
        return sk.top_logprobs(sk.Rows(x.logits, stats=x.stats), k, x.tokens)

    again = 0 if device == "cpu" else min(k, -(-V // 1024)) * 1024 * rows.element_size() * N
    work = Work(x, ours, rows.nbytes + N * (k + 1) * 12, again)
    work.peers["eager"] = partial(eager, k=k)
    if k:
        work.peers["topk"] = lambda x: x.logits.topk(k)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("top_logprobs", ours, device))
    return work

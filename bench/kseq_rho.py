# SPDX-License-Identifier: Apache-2.0
"""Benchmark of kseq_rho against bisection (20 steps, eager float32, with and without softmax), and against row_stats.

Bytes: both rows once. Three to five passes of the search then read both again: on a CPU from a float32 copy of the
pair, on a GPU from weights that a cluster of blocks keeps on chip, or from rows that may be in the L2 cache.
`second_read` counts three passes over the rows. In vector instructions per pair of entries, row_stats of both rows
takes about 24, the copy as many, and a pass with its four candidates 14. So a search of four passes costs about 3.3
times row_stats of both, or less where exponentials are more expensive (AVX2).
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import switched, triton


def bisection(p: torch.Tensor, q: torch.Tensor, k: int, steps: int = 20) -> torch.Tensor:
    low, high = torch.ones_like(p[:, :1]), torch.full_like(p[:, :1], k)
    for _ in range(steps):
        middle = (low + high) / 2
        beta = torch.minimum(q, p / middle).sum(-1, keepdim=True)
        valid = 1 - (1 - beta) ** k <= middle * beta
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return high


def cases(device: str) -> Cases:
    for N in (1, 8) if device == "cpu" else (1, 64):
        for dtype in ("fp32", "bf16"):
            for k in (4, 64):
                yield Case(f"N={N} V=151936 {dtype} k={k}", partial(_rows, N, 151936, dtype, k, device))


def _rows(N: int, V: int, dtype: str, k: int, device: str) -> Work:
    z = logits(N, V, dtype=torch.float32, device=device, seed=V)
    # a draft similar to its target
    y = z + torch.empty_like(z).normal_(0, 0.5, generator=torch.Generator(device).manual_seed(k))
    z, y = z.to(DTYPES[dtype]), y.to(DTYPES[dtype])
    probs = {"p": z.float().softmax(-1), "q": y.float().softmax(-1)}
    x = SimpleNamespace(z=z, y=y, z_stats=sk.row_stats(z), y_stats=sk.row_stats(y), **probs)

    def ours(x):
        return sk.kseq_rho(sk.Rows(x.z, stats=x.z_stats), sk.Rows(x.y, stats=x.y_stats), k)

    work = Work(x, ours, z.nbytes + y.nbytes, 3 * (z.nbytes + y.nbytes))
    work.peers["softmax and bisection"] = lambda x: bisection(x.z.float().softmax(-1), x.y.float().softmax(-1), k)
    work.peers["bisection alone"] = lambda x: bisection(x.p, x.q, k)
    work.peers["row_stats of both"] = lambda x: (sk.row_stats(x.z), sk.row_stats(x.y))
    if device == "cuda":
        work.peer("ours, one block", lambda: switched.same(ours))
        work.peer("ours in triton", lambda: triton.same("kseq_rho", ours, device))
    return work

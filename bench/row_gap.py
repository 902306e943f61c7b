# SPDX-License-Identifier: Apache-2.0
"""Benchmark of row_gap with given stats, against row_stats on the same rows and eager float32.

Bytes: both rows once. `second_read` counts two more passes on a GPU. Where a cluster keeps the weights on chip there is
only one more.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import switched


def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for N in (8, 64):
            yield Case(f"N={N} V=151936 {dtype}", functools.partial(_gap, N, 151936, dtype, device))


def eager(x: SimpleNamespace) -> torch.Tensor:
    p, q = x.p.float().softmax(-1), x.q.float().softmax(-1)
    entropy = [torch.special.entr(row).sum(-1) for row in (p, q)]
    return torch.stack(
        [(p - q).clamp(min=0).sum(-1), torch.minimum(p, q).sum(-1), *entropy, p.amax(-1), q.amax(-1)], -1
    )


def _gap(N: int, V: int, dtype: str, device: str) -> Work:
    p, q = (logits(N, V, dtype=DTYPES[dtype], device=device, seed=seed) for seed in (N, N + 1))
    x = SimpleNamespace(p=p, q=q, p_stats=sk.row_stats(p), q_stats=sk.row_stats(q))

    def ours(x):
        return sk.row_gap(sk.Rows(x.p, stats=x.p_stats), sk.Rows(x.q, stats=x.q_stats))

    work = Work(x, ours, 2 * p.nbytes, 4 * p.nbytes * (device != "cpu"))
    work.peers["row_stats"] = lambda x: (sk.row_stats(x.p), sk.row_stats(x.q))
    work.peers["eager"] = eager
    if device == "cuda":
        work.peer("ours, one block", lambda: switched.same(ours))
    return work

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of uniforms against torch.rand (which is neither per request nor stateless). Bytes: the output."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for B, n, calls in ((64, 6, 200), (1024, 1024, 1)):
        yield Case(f"B={B} n={n}", partial(_numbers, B, n, calls, device))


def _numbers(B: int, n: int, calls: int, device: str) -> Work:
    x = SimpleNamespace(seed=torch.arange(B, device=device), offset=torch.zeros(B, dtype=torch.int64, device=device))

    def ours(x):
        return sk.uniforms(x.seed, x.offset, n)

    work = Work(
        x, ours, B * n * 8, peers={"rand": lambda _: torch.rand(B, n, dtype=torch.float64, device=device)}, calls=calls
    )
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("uniforms", ours, device))
    return work

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of accept against eager torch. Bytes: p, q and u read, one bool written."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for n, calls in ((320, 200), (1 << 20, 1)):
        yield Case(f"n={n}", partial(_tests, n, calls, device))


def _tests(n: int, calls: int, device: str) -> Work:
    generator = torch.Generator().manual_seed(n)
    p, q = (torch.rand(n, generator=generator).to(device) for _ in range(2))
    x = SimpleNamespace(p=p, q=q, u=torch.rand(n, dtype=torch.float64, generator=generator).to(device))

    def ours(x):
        return sk.accept(x.p, x.q, x.u)

    work = Work(x, ours, n * 17, peers={"eager": lambda x: x.u * x.q < x.p}, calls=calls)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("accept", ours, device))
    return work

# SPDX-License-Identifier: Apache-2.0
"""uniforms against torch.rand (which is neither per request nor stateless). Bytes: what is written."""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work


def cases(device: str) -> Cases:
    for B, n, calls in ((64, 6, 200), (1024, 1024, 1)):
        yield Case(f"B={B} n={n}", partial(_numbers, B, n, calls, device))


def _numbers(B: int, n: int, calls: int, device: str) -> Work:
    seed, offset = torch.arange(B, device=device), torch.zeros(B, dtype=torch.int64, device=device)
    rand = partial(torch.rand, B, n, dtype=torch.float64, device=device)
    return Work(lambda: sk.uniforms(seed, offset, n), B * n * 8, {"rand": rand}, calls)

# SPDX-License-Identifier: Apache-2.0
"""accept against eager torch. Bytes: p, q, u read, one bool written."""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work


def cases(device: str) -> Cases:
    for n, calls in ((320, 200), (1 << 20, 1)):
        yield Case(f"n={n}", partial(_tests, n, calls, device))


def _tests(n: int, calls: int, device: str) -> Work:
    generator = torch.Generator().manual_seed(n)
    p, q = (torch.rand(n, generator=generator).to(device) for _ in range(2))
    u = torch.rand(n, dtype=torch.float64, generator=generator).to(device)
    return Work(lambda: sk.accept(p, q, u), n * 17, {"eager": lambda: u * q < p}, calls)

# SPDX-License-Identifier: Apache-2.0
"""sample against softmax + multinomial. Bytes: each row once (the chunk that a draw lands in is read again)."""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits

N = 32



def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for V in (32000, 151936):
            for k, replacement in ((1, True), (4, True), (4, False)):
                label = f"N={N} V={V} {dtype} k={k}{'' if replacement else ' without replacement'}"
                yield Case(label, partial(_draws, V, dtype, k, replacement, device))


def _draws(V: int, dtype: str, k: int, replacement: bool, device: str) -> Work:
    x = logits(N, V, dtype=DTYPES[dtype], device=device, seed=V)
    seed, offset = torch.arange(N, device=device), torch.zeros(N, dtype=torch.int64, device=device)
    return Work(
        lambda: sk.sample(x, k=k, replacement=replacement, seed=seed, offset=offset),
        x.nbytes,
        {"multinomial": lambda: x.float().softmax(-1).multinomial(k, replacement)},
    )

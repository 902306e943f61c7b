# SPDX-License-Identifier: Apache-2.0
"""row_stats against torch.logsumexp, and with filters against the sort that engines do. Bytes: each row once."""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits

N = 32
FILTERS = {
    "": {},
    " min_p=.05": {"min_p": 0.05},
    " top_k=50": {"top_k": 50},
    " top_p=.9": {"top_p": 0.9},
    " top_k=50 top_p=.9": {"top_k": 50, "top_p": 0.9},
}


def sorted_filter(x: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """Masked log_softmax by a full sort, as the common samplers do it."""
    z = x.float()
    if min_p:
        z = z.masked_fill(z < z.amax(-1, keepdim=True) + torch.tensor(min_p).log().item(), -torch.inf)
    if top_k:
        z = z.masked_fill(z < z.topk(top_k, -1).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, ids = z.sort(-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        z = z.masked_fill(drop.scatter(-1, ids, drop), -torch.inf)
    return z.log_softmax(-1)


def cases(device: str) -> Cases:
    for dtype in DTYPES:
        for V in (32000, 151936):
            for name in FILTERS if dtype == "bf16" else ("",):
                yield Case(f"N={N} V={V} {dtype}{name}", partial(_rows, V, dtype, name, device))


def _rows(V: int, dtype: str, name: str, device: str) -> Work:
    x, filters = logits(N, V, dtype=DTYPES[dtype], device=device, seed=V), FILTERS[name]
    peers = {"sort": lambda: sorted_filter(x, **filters)} if filters else {"logsumexp": lambda: x.float().logsumexp(-1), "sum": x.sum}
    return Work(lambda: sk.row_stats(x, **filters), x.nbytes, peers)

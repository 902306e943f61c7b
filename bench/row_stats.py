# SPDX-License-Identifier: Apache-2.0
"""Benchmark of row_stats against torch.logsumexp and a plain read; with filters, against torch's own functions:
a full sort for top-p, topk for top-k.

Bytes: each row once. With top-k or top-p our kernels may read it a second time.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import eager, flashinfer, triton

FILTERS = {
    "": {},
    " min_p=.05": {"min_p": 0.05},
    " top_k=50": {"top_k": 50},
    " top_p=.9": {"top_p": 0.9},
    " top_k=50 top_p=.9": {"top_k": 50, "top_p": 0.9},
}


def sorted_filter(x: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """Return the log_softmax of the filtered row in plain torch, as common samplers do: top-p by a full sort."""
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
    for N in (32,) if device == "cpu" else (384, 8):
        for dtype in DTYPES if N != 8 else ("bf16",):
            for V in (32000, 151936):
                for name in FILTERS if dtype == "bf16" else ("",):
                    yield Case(f"N={N} V={V} {dtype}{name}", partial(_rows, N, V, dtype, name, device))


def _rows(N: int, V: int, dtype: str, name: str, device: str) -> Work:
    filters = FILTERS[name]
    as_tensors = {key: torch.full((N,), value, device=device) for key, value in filters.items()}
    x = SimpleNamespace(logits=logits(N, V, dtype=DTYPES[dtype], device=device, seed=V))

    def ours(x):
        return sk.row_stats(sk.Rows(x.logits, **as_tensors))

    again = x.logits.nbytes if {"top_k", "top_p"} & set(filters) else 0
    work = Work(x, ours, x.logits.nbytes, again)
    if filters:
        work.peers["sort"] = lambda x: sorted_filter(x.logits, **filters)
        if "top_k" in filters:
            work.peers["topk"] = lambda x: eager.log_law(x.logits, **filters)
    else:
        work.peers |= {"logsumexp": lambda x: x.logits.float().logsumexp(-1), "sum": lambda x: x.logits.sum()}
    if device == "cuda":
        if name == " top_k=50 top_p=.9":
            work.peer("flashinfer", lambda: flashinfer.law(**filters))
        work.peer("ours in triton", lambda: triton.same("row_stats", ours, device))
    return work

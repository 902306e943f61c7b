# SPDX-License-Identifier: Apache-2.0
"""Benchmark of count_tokens_ against eager torch, which sorts the list and the tokens together.

Each call first restores the lists, so that all calls do the same work. The bytes counted are those of that copy, of one
read of the lists, and of one more read and write of the entries after the first new id.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton

NO_TOKEN = 1 << 30  # sorts after every id


def cases(device: str) -> Cases:
    for B, H, used, kind, calls in (
        (1, 2048, 2000, "new", 200),
        (64, 2048, 2000, "known", 10),
        (64, 2048, 2000, "new", 10),
        (64, 2048, 2048, "new, full", 10),
    ):
        yield Case(f"B={B} H={H} {kind}", partial(_step, B, H, used, kind, calls, device))


def _step(B: int, H: int, used: int, kind: str, calls: int, device: str) -> Work:
    """Return the work of a step that emits 6 tokens per request. The lists hold even ids."""
    known = kind == "known"
    listed = torch.arange(used, dtype=torch.int32) * 2
    tokens = torch.randint(0, used, (B, 6), generator=torch.Generator().manual_seed(1)) * 2 + (not known)
    ids = torch.full((B, H), -1, dtype=torch.int32)
    ids[:, :used] = listed
    counts = torch.where(ids < 0, 0, ids % 3).to(torch.int32)
    x = SimpleNamespace(ids=ids, counts=counts, old_ids=ids.clone(), old_counts=counts.clone(), tokens=tokens)
    x = SimpleNamespace(**{name: each.to(device) for name, each in vars(x).items()})

    def restore(x):
        x.ids.copy_(x.old_ids)
        x.counts.copy_(x.old_counts)

    def ours(x):
        restore(x)
        sk.count_tokens_(x.ids, x.counts, x.tokens)
        return x.counts

    def others(x):
        restore(x)
        eager(x.ids, x.counts, x.tokens)
        return x.counts

    moved = 0 if known else int((used - tokens.min(1).values // 2).clamp(min=0).sum())
    total = 16 * B * H + 8 * B * H + 16 * moved + tokens.nbytes
    work = Work(x, ours, total, peers={"eager": others}, calls=calls, outcome=total_count)
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("count_tokens_", ours, device))
    return work


def total_count(counts: torch.Tensor) -> float:
    return float(counts.sum())


def eager(ids: torch.Tensor, counts: torch.Tensor, tokens: torch.Tensor) -> None:
    """Count the tokens in plain torch, without waiting for the device. All tokens must be ids."""
    H = ids.size(1)
    every = torch.cat([torch.where(ids < 0, NO_TOKEN, ids), tokens.int()], 1)
    amounts = torch.cat([torch.where(ids < 0, 0, counts), torch.ones_like(tokens, dtype=torch.int32)], 1)
    every, order = every.sort(1)
    amounts = amounts.gather(1, order)
    first = torch.ones_like(every, dtype=torch.bool)
    first[:, 1:] = every[:, 1:] != every[:, :-1]
    place = first.cumsum(1) - 1
    together = torch.full_like(every, NO_TOKEN).scatter_(1, place, every)
    count = torch.zeros_like(amounts).scatter_add_(1, place, amounts)
    count = torch.where(together == NO_TOKEN, -1, count)  # padding sorts last, so it is dropped first
    kept, at = count.sort(dim=1, descending=True, stable=True)
    kept_ids, order = together.gather(1, at)[:, :H].sort(1)
    ids.copy_(torch.where(kept_ids == NO_TOKEN, -1, kept_ids))
    counts.copy_(kept[:, :H].gather(1, order).clamp(min=0))

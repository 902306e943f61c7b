# SPDX-License-Identifier: Apache-2.0
"""Benchmark of grow_tree against a heap in Python, request by request, and against eager torch, which takes the best
nodes of each depth.

Bytes: candidates read, the tree written.
"""

from __future__ import annotations

import heapq
from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for B, L, K, nodes, calls in ((1, 15, 8, 32, 100), (1, 15, 32, 64, 50), (64, 15, 32, 64, 5), (1, 15, 64, 512, 5)):
        yield Case(f"B={B} L={L} K={K} nodes={nodes}", partial(_trees, B, L, K, nodes, calls, device))


def _trees(B: int, L: int, K: int, nodes: int, calls: int, device: str) -> Work:
    """Return the work of one shape: the K likeliest of 1,000 tokens at each depth."""
    logits = torch.randn(B, L, 1000, generator=torch.Generator().manual_seed(K)) * 3
    log_q, tokens = logits.log_softmax(-1).topk(K)
    x = SimpleNamespace(log_q=log_q.to(device), tokens=tokens.to(device))

    def ours(x):
        return sk.grow_tree(x.log_q, x.tokens, nodes)

    peers = {"eager": lambda x: eager(x.log_q, x.tokens, nodes)}
    if device == "cpu":
        peers["a heap"] = lambda x: heaps(x.log_q, x.tokens, nodes)
    moved = 12 * log_q.numel() + 12 * B * nodes
    work = Work(x, ours, moved, peers=peers, calls=calls, outcome=lambda tree: float(tree[0].sum()))
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("grow_tree", ours, device))
    return work


def heaps(log_q: torch.Tensor, tokens: torch.Tensor, nodes: int):
    """Grow the trees in plain Python. Candidates must be in order."""
    B, L, K = log_q.shape
    parents, out = [[-1] * nodes for _ in range(B)], [[-1] * nodes for _ in range(B)]
    for b, (costs, ids) in enumerate(zip((-log_q).tolist(), tokens.tolist())):
        heap = [(costs[0][0], 0, 0, 0, 0.0)]
        for n in range(1, nodes):
            cost, level, rank, parent, above = heapq.heappop(heap)
            parents[b][n], out[b][n] = parent, ids[level][rank]
            if rank + 1 < K:
                heapq.heappush(heap, (above + costs[level][rank + 1], level, rank + 1, parent, above))
            if level + 1 < L:
                heapq.heappush(heap, (cost + costs[level + 1][0], level + 1, 0, n, cost))
    return torch.tensor(parents), torch.tensor(out)


def eager(log_q: torch.Tensor, tokens: torch.Tensor, nodes: int):
    """Grow the trees in plain torch, without waiting for the device: the best paths of each depth, then of all."""
    B, L, K = log_q.shape
    score, above = log_q.new_zeros(B, 1), torch.zeros(B, 1, dtype=torch.int64, device=log_q.device)
    scores, parents, ids, first = [], [], [], 0
    for level in range(L):
        paths = score[:, :, None] + log_q[:, level, None]
        score, at = paths.flatten(1).topk(min(nodes - 1, paths[0].numel()))
        scores.append(score)
        parents.append(above.gather(1, at // K) if level else torch.zeros_like(at))
        ids.append(tokens[:, level].gather(1, at % K))
        above = torch.arange(first + 1, first + 1 + score.size(1), device=log_q.device).expand(B, -1)
        first += score.size(1)
    best = torch.cat(scores, 1).sort(dim=1, descending=True, stable=True).indices[:, : nodes - 1]
    place = torch.zeros(B, first + 1, dtype=torch.int64, device=log_q.device)
    place.scatter_(1, best + 1, torch.arange(1, best.size(1) + 1, device=log_q.device).expand(B, -1))
    parent = place.gather(1, torch.cat(parents, 1).gather(1, best))
    root = torch.full((B, 1), -1, device=log_q.device)
    return torch.cat([root, parent], 1), torch.cat([root, torch.cat(ids, 1).gather(1, best)], 1)

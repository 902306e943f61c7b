# SPDX-License-Identifier: Apache-2.0
"""Benchmark of build_tree against eager torch, which compares all pairs of drafts.

Bytes: drafts read, the tree written.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Cases, Work
from bench.peers import triton


def cases(device: str) -> Cases:
    for B, K, L, calls in ((1, 4, 4, 200), (64, 4, 4, 50), (64, 8, 8, 20), (64, 64, 16, 1)):
        yield Case(f"B={B} K={K} L={L}", partial(_trees, B, K, L, calls, device))


def _trees(B: int, K: int, L: int, calls: int, device: str) -> Work:
    """Return the work of one shape. About half of the drafted tokens are one id, so some drafts share a prefix."""
    generator = torch.Generator().manual_seed(K)
    ids = torch.randint(0, 150_000, (B, K, L), generator=generator)
    ids = torch.where(torch.rand(B, K, L, generator=generator) < 0.5, 11, ids)
    x = SimpleNamespace(draft_tokens=ids.to(device))

    def ours(x):
        return sk.build_tree(x.draft_tokens)

    peers = {"eager": lambda x: eager(x.draft_tokens)}
    moved = 12 * ids.numel() + 16 * B * (K * L + 1)
    work = Work(x, ours, moved, peers=peers, calls=calls, outcome=lambda tree: float((tree[0] >= 0).sum()))
    if device == "cuda":
        work.peer("ours in triton", lambda: triton.same("build_tree", ours, device))
    return work


def eager(draft_tokens: torch.Tensor):
    """Build the same tree in plain torch, without waiting for the device. All ids must be >= 0."""
    B, K, L = draft_tokens.shape
    nodes = (B, K * L + 1)
    parents, multiplicity = draft_tokens.new_full(nodes, -1), draft_tokens.new_zeros(nodes)
    tokens, draft_nodes = draft_tokens.new_full(nodes, -1), []
    multiplicity[:, 0] = K
    at, first = draft_tokens.new_zeros(B, K), draft_tokens.new_ones(B, 1)
    for token in draft_tokens.unbind(2):
        together = (at[:, :, None] == at[:, None, :]) & (token[:, :, None] == token[:, None, :])
        leader = together.int().argmax(2)
        leads = (leader == torch.arange(K, device=token.device)).long()
        node = first + (leads.cumsum(1) - leads).gather(1, leader)
        parents.scatter_(1, node, at)
        tokens.scatter_(1, node, token)
        multiplicity.scatter_(1, node, together.sum(2))
        draft_nodes.append(node)
        at, first = node, first + leads.sum(1, keepdim=True)
    return parents, tokens, multiplicity, torch.stack(draft_nodes, 2)

# SPDX-License-Identifier: Apache-2.0
"""build_tree (csrc/ops/build_tree/build_tree.h): a program per request.

At each level, all pairs of drafts are compared in tiles. Drafts that continue from one node with the same token share
the new node; the first of them is its leader."""

import torch
import triton
import triton.language as tl

from specdec_kernels.registry import MAX_DRAFTS

from .core import launch

MAX_K = tl.constexpr(MAX_DRAFTS)


@triton.jit
def load_level(draft_tokens, request, draft_stride, level_stride, draft_nodes, nodes, k, l, K, L):
    """Return the node of each draft k at the level above l, and its token at level l; -1 after its end."""
    inside = k < K
    at = tl.load(draft_nodes + nodes + k * L + l - 1, mask=inside & (l > 0), other=0)
    going = inside & (at >= 0)
    token = tl.load(draft_tokens + request + k * draft_stride + l * level_stride, mask=going, other=-1).to(tl.int64)
    return at, token


@launch.kernel
def build_tree_kernel(
    draft_tokens, request_stride, draft_stride, level_stride, parents, tokens, multiplicity, draft_nodes, leaders,
    K, L, N, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    request, nodes = b * request_stride, b * K * L
    parents += b * N
    tokens += b * N
    multiplicity += b * N
    leaders += b * K
    lane = tl.arange(0, TILE)
    for begin in range(0, N, TILE):
        node = begin + lane
        tl.store(parents + node, tl.full([TILE], -1, tl.int32), mask=node < N)
        tl.store(tokens + node, tl.full([TILE], -1, tl.int64), mask=node < N)
        tl.store(multiplicity + node, tl.where(node == 0, K, 0), mask=node < N)
    tl.debug_barrier()

    first = 1  # the first node of this level
    for l in range(0, L):
        for begin in range(0, K, TILE):
            k = begin + lane
            at, token = load_level(draft_tokens, request, draft_stride, level_stride, draft_nodes, nodes, k, l, K, L)
            lead = tl.full([TILE], MAX_K, tl.int32)
            for other in range(0, begin + TILE, TILE):
                j = other + lane
                its_at, its_token = load_level(
                    draft_tokens, request, draft_stride, level_stride, draft_nodes, nodes, j, l, K, L
                )
                together = (at[:, None] == its_at[None, :]) & (token[:, None] == its_token[None, :])
                lead = tl.minimum(lead, tl.min(tl.where(together, j[None, :], MAX_K), 1))
            tl.store(leaders + k, tl.where(token < 0, -1, lead), mask=k < K)
        tl.debug_barrier()

        every = tl.zeros([TILE], tl.int32)  # leaders of this level, counted by lane
        for begin in range(0, K, TILE):
            k = begin + lane
            at, token = load_level(draft_tokens, request, draft_stride, level_stride, draft_nodes, nodes, k, l, K, L)
            lead = tl.load(leaders + k, mask=k < K, other=-1)
            rank = tl.zeros([TILE], tl.int32)
            followers = tl.zeros([TILE], tl.int32)
            for other in range(0, K, TILE):
                j = other + lane
                its_lead = tl.load(leaders + j, mask=j < K, other=-1)
                rank += tl.sum(((its_lead == j)[None, :] & (j[None, :] < lead[:, None])).to(tl.int32), 1)
                followers += tl.sum((its_lead[None, :] == lead[:, None]).to(tl.int32), 1)
            node = tl.where(lead < 0, -1, first + rank)
            new = lead == k
            every += new.to(tl.int32)
            tl.store(draft_nodes + nodes + k * L + l, node, mask=k < K)
            tl.store(parents + node, at, mask=new)
            tl.store(tokens + node, token, mask=new)
            tl.store(multiplicity + node, followers, mask=new)
        first += tl.sum(every, 0)
        tl.debug_barrier()


def build_tree(results, draft_tokens):
    B, K, L = draft_tokens.shape
    if B:
        leaders = torch.empty((B, K), dtype=torch.int32, device=draft_tokens.device)
        tile = min(64, max(16, launch.power_of_2(K)))
        args = (draft_tokens, *draft_tokens.stride(), *results, leaders, K, L, K * L + 1)
        launch.run(build_tree_kernel, (B,), 128, *args, TILE=tile)

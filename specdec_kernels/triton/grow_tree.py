# SPDX-License-Identifier: Apache-2.0
"""grow_tree (csrc/ops/grow_tree/grow_tree.h): a program per request.

It ranks the candidates of each level by comparing all pairs of them in tiles. Then it adds nodes one by one, the one
with the smallest key first. One tensor holds the key of each node, another the key of each node's next child."""

import torch
import triton
import triton.language as tl

from specdec_kernels.registry import MAX_VOCABULARY

from .core import launch

IDS_END = tl.constexpr(MAX_VOCABULARY)
NO_KEY = tl.constexpr((1 << 63) - 1)
INF = tl.constexpr(float("inf"))


@triton.jit
def load_candidates(log_q, tokens, level, k, K):
    """Return the costs -log_q of candidates k and their tokens. A candidate that is left out has an infinite cost."""
    x = tl.load(log_q + level * K + k, mask=k < K, other=-INF)
    token = tl.load(tokens + level * K + k, mask=k < K, other=-1).to(tl.int64)
    return tl.where((x <= 0) & (token >= 0) & (token < IDS_END), 0.0 - x, INF), token


@triton.jit
def order_level(log_q, tokens, level, K, order, costs, TILE: tl.constexpr):
    """Store the costs of a level's candidates, and the candidates by rank. Only the best candidate of a token is
    kept."""
    lane = tl.arange(0, TILE)
    for begin in range(0, K, TILE):
        k = begin + lane
        cost, token = load_candidates(log_q, tokens, level, k, K)
        repeated = tl.zeros([TILE], tl.int32)
        for other in range(0, K, TILE):
            j = other + lane
            its_cost, its_token = load_candidates(log_q, tokens, level, j, K)
            before = its_cost[None, :] < cost[:, None]
            before |= (its_cost[None, :] == cost[:, None]) & (j[None, :] < k[:, None])
            same = (its_token[None, :] == token[:, None]) & (its_cost[None, :] < INF)
            repeated += tl.sum((before & same).to(tl.int32), 1)
        tl.store(costs + level * K + k, tl.where(repeated > 0, INF, cost), mask=k < K)
        tl.store(order + level * K + k, tl.full([TILE], -1, tl.int32), mask=k < K)
    tl.debug_barrier()
    for begin in range(0, K, TILE):
        k = begin + lane
        cost = tl.load(costs + level * K + k, mask=k < K, other=INF)
        rank = tl.zeros([TILE], tl.int32)
        for other in range(0, K, TILE):
            j = other + lane
            its_cost = tl.load(costs + level * K + j, mask=j < K, other=INF)
            before = its_cost[None, :] < cost[:, None]
            before |= (its_cost[None, :] == cost[:, None]) & (j[None, :] < k[:, None])
            rank += tl.sum(before.to(tl.int32), 1)
        tl.store(order + level * K + rank, k, mask=cost < INF)


@triton.jit
def cost_of(key):
    return (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def child_key(order, costs, cost, level, rank, parent, L, K):
    """Return the key of a parent's child at a rank; NO_KEY if there is no such candidate. From its highest bits down, a
    key holds the cost of the path, the level, the rank and the parent."""
    k = tl.load(order + level * K + rank, mask=(level < L) & (rank < K), other=-1)
    total = cost + tl.load(costs + level * K + k, mask=k >= 0, other=INF)
    key = total.to(tl.int32, bitcast=True).to(tl.int64) << 32 | (level << 20 | rank << 10 | parent).to(tl.int64)
    return tl.where(total < INF, key, NO_KEY)


@launch.kernel
def grow_tree_kernel(
    log_q, tokens, parents, node_tokens, order, costs, levels, L, K, N, TILE: tl.constexpr, NODES: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    log_q += b * levels * K
    tokens += b * levels * K
    order += b * L * K
    costs += b * L * K
    for level in range(0, L):
        order_level(log_q, tokens, level, K, order, costs, TILE)
    tl.debug_barrier()

    node = tl.arange(0, NODES)
    n = tl.minimum(b, 0).to(tl.int32)  # 0 as a tensor, since it changes in the loop
    keys = tl.zeros([NODES], tl.int64)  # of the nodes; the root's cost is 0
    frontier = tl.where(node == 0, child_key(order, costs, 0.0, n, n, n, L, K), NO_KEY)  # each node's next child
    n += 1
    key = tl.min(frontier, 0)
    while (n < N) & (key < NO_KEY):
        parent = (key & 1023).to(tl.int32)
        rank = (key >> 10 & 1023).to(tl.int32)
        level = (key >> 20 & 1023).to(tl.int32)
        above = cost_of(tl.max(tl.where(node == parent, keys, 0), 0))
        keys = tl.where(node == n, key, keys)
        frontier = tl.where(node == parent, child_key(order, costs, above, level, rank + 1, parent, L, K), frontier)
        frontier = tl.where(node == n, child_key(order, costs, cost_of(key), level + 1, 0, n, L, K), frontier)
        n += 1
        key = tl.min(frontier, 0)

    real = (node > 0) & (node < n)
    level = (keys >> 20 & 1023).to(tl.int32)
    k = tl.load(order + level * K + (keys >> 10 & 1023).to(tl.int32), mask=real, other=0)
    token = tl.load(tokens + level * K + k, mask=real, other=-1).to(tl.int64)
    tl.store(parents + b * N + node, tl.where(real, (keys & 1023).to(tl.int32), -1), mask=node < N)
    tl.store(node_tokens + b * N + node, token, mask=node < N)


def grow_tree(results, log_q, tokens, nodes):
    B, levels, K = log_q.shape
    if B:
        L = min(levels, nodes - 1)
        order, costs = (torch.empty((B, L * K), dtype=x, device=log_q.device) for x in (torch.int32, torch.float32))
        tile, width = min(32, max(16, launch.power_of_2(K))), max(16, launch.power_of_2(nodes))
        args = (log_q.contiguous(), tokens.contiguous(), *results, order, costs, levels, L, K, nodes)
        launch.run(grow_tree_kernel, (B,), 32 if width <= 128 else 128, *args, TILE=tile, NODES=width)

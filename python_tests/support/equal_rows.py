# SPDX-License-Identifier: Apache-2.0
"""A rank of a tensor-parallel engine with whole rows that are equal on all ranks: it drafts and verifies by itself."""

import torch

import specdec_kernels as sk

B, G, V = 64, 3, 1009


def step(rank, seed=0):
    """Return the drafted tokens, the emitted tokens and the numbers accepted.

    Each rank has its own order of requests, alignment of rows, number of threads and state of torch's generator.
    """
    torch.set_num_threads(1 + rank)
    torch.manual_seed(rank)
    equal = torch.Generator().manual_seed(5)
    target = 2 * torch.randn(B, G + 1, V, generator=equal)
    draft = target[:, :G] + torch.randn(B, G, V, generator=equal)

    order = torch.randperm(B)
    mine = lambda rows: torch.cat([torch.zeros(B, rows.shape[1], 1 + rank), rows[order]], -1)[..., 1 + rank :]
    rng = dict(seed=seed + order, offset=torch.full((B,), 9))
    rows = mine(draft)
    drafts = [sk.sample(sk.Rows(rows[:, i], temperature=0.8), slot=i, **rng) for i in range(G)]
    drafted = torch.cat([x.tokens for x in drafts], 1)
    sampled = sk.Rows(mine(target), temperature=0.8, top_p=0.95)
    out = sk.verify_chain(sampled, drafted, sk.stack_rows([x.rows for x in drafts]), **rng)

    back = order.argsort()
    return drafted[back].tolist(), out.tokens[back].tolist(), out.num_accepted[back].tolist()

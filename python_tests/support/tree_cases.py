# SPDX-License-Identifier: Apache-2.0
"""Trees of drafts that differ by request, with their rows: keyword arguments of verify_tree."""

import torch
from support import answers as reference
from support import cases
from support.plain import Plain, inverse_cdf


def rows(seed, B, N, V, Vq=None, dtype=torch.float32, draft_dtype=None, kinds=cases.KINDS):
    """Return the logits of both sides, [B, N, V] and [B, N, Vq]. Kinds of pairs take turns over requests and nodes."""
    p, q = cases.rows_pair(seed, B * N, V, Vq, dtype, draft_dtype, kinds)
    return p.reshape(B, N, -1), q.reshape(B, N, -1)


def drawn(q, at, rng):
    """Draw one id per request from the rows q [B, N, Vq] of nodes `at` [B]."""
    B = len(q)
    return inverse_cdf(q[torch.arange(B), at], torch.rand(B, generator=rng, dtype=torch.float64))


def drafted_tree(q, K, L, rng):
    """Return build_tree of K i.i.d. drafts of length L. q [B, K*L+1, Vq]: the distribution of each node's children."""
    B = len(q)
    drafts = torch.full((B, K, L), -1)
    at = torch.zeros(B, K, dtype=torch.int64)
    for level in range(L):
        for k in range(K):
            drafts[:, k, level] = drawn(q, at[:, k], rng)
        at = reference.build_tree(drafts[:, :, : level + 1]).draft_nodes[:, :, level].long()
    return reference.build_tree(drafts)


def grown_tree(q, rng, target=None):
    """Return trees of up to N nodes.

    Parents are random among earlier nodes, so depth and width differ. Tokens are drawn from the parent's distribution;
    one in three is the target's argmax. The last nodes of some requests are padding.
    """
    B, N = q.shape[:2]
    parents, tokens = torch.full((B, N), -1, dtype=torch.int32), torch.full((B, N), -1)
    reach = 1 + torch.randint(0, 4, (B,), generator=rng)  # 1: long paths; larger: wide trees
    size = torch.where(torch.rand(B, generator=rng) < 0.5, N, 1 + torch.randint(0, N, (B,), generator=rng))
    for i in range(1, N):
        spread = (torch.rand(B, generator=rng) * torch.minimum(reach * 2, torch.tensor(i))).long()
        parent = torch.where(torch.rand(B, generator=rng) < 0.3, 0, i - 1 - spread).clamp(0)
        token = drawn(q, parent, rng)
        if target is not None:
            best = target[torch.arange(B), parent].float().argmax(-1)
            token = torch.where(torch.rand(B, generator=rng) < 1 / 3, best, token)
        here = i < size
        parents[here, i] = parent[here].int()
        tokens[here, i] = token[here]
    return reference.build_tree(torch.zeros(0, 0, 0, dtype=torch.int64))._replace(
        parents=parents, tokens=tokens, multiplicity=None, draft_nodes=None
    )


def tree(
    seed,
    B,
    V,
    method,
    K=3,
    L=2,
    N=None,
    Vq=None,
    dtype=torch.float32,
    draft_dtype=None,
    filtered=False,
    one_hot=False,
    shuffled=False,
    linked=False,
    max_depth=None,
    stats=False,
    probs=False,
    dirty=True,
    kinds=cases.KINDS,
):
    """Return keyword arguments of verify_tree.

    N: the nodes of a grown tree; None for a tree of K drafts of length L. shuffled: rows are given by index, and the
    draft rows of some nodes are one-hot.
    """
    rng = torch.Generator().manual_seed(seed)
    nodes = N or K * L + 1
    p, q = rows(seed, B, nodes, V, Vq, dtype, draft_dtype, kinds)
    draft_params = {}
    args = {"method": method, "max_depth": max_depth}
    if filtered:
        args |= cases.parameters(seed, B)
        if not one_hot:
            draft_params = cases.parameters(seed + 2, B)
            # not 0: greedy drafts of one node would all be equal
            draft_params["temperature"] = draft_params["temperature"].clamp(min=0.3)
            args |= {"draft_" + name: value for name, value in draft_params.items()}
    laws = Plain().laws(q, **draft_params)
    tree = grown_tree(laws, rng, p) if N else drafted_tree(laws, K, L, rng)
    if dirty:
        outside = torch.randint(0, 24, (B, nodes), generator=rng)
        tree.tokens[outside == 0] = -1
        tree.tokens[outside == 1] = max(V, Vq or V) + 5
    columns = K * L if method in ("kseq", "recursive") and not N else nodes
    args["uniforms"] = torch.rand(B, columns + 1, generator=rng, dtype=torch.float64)
    if stats:
        args["draft_stats"] = reference.row_stats(q.flatten(0, 1)).float().reshape(B, nodes, 4)
        args["target_stats"] = reference.row_stats(p.flatten(0, 1)).float().reshape(B, nodes, 4)
    if probs:
        p, q = p.float().softmax(-1).to(dtype), q.float().softmax(-1).to(draft_dtype or dtype)
        args |= {"target_kind": "probs", "draft_kind": "probs"}
    if linked:
        args["links"] = linked_children(tree.parents, rng)
    if shuffled:  # rows in another order, two more rows than nodes, and some drafts one-hot
        order = torch.stack([torch.randperm(nodes + 2, generator=rng)[:nodes] for _ in range(B)])
        p, q = (scattered(x, order) for x in (p, q))
        args["target_row"] = order.int()
        parent = tree.parents.long().clamp(min=0)
        row = order.gather(1, parent)
        looked_up = torch.rand(B, nodes, generator=rng) < 0.3
        args["draft_row"] = torch.where(looked_up, -1, row)
        if stats:
            args |= {name: scattered(args[name], order) for name in ("target_stats", "draft_stats")}
    return {"tree": tuple(tree), "target_logits": p, "draft_logits": None if one_hot else q, **args}


def spoil(args, poison, share=1 / 3):
    """Put invalid values in a share of both sides' rows, in one entry or (-inf) in all."""
    rng = torch.Generator().manual_seed(6)
    for name in ("target_logits", "draft_logits"):
        x = args[name]
        bad = torch.rand(x.shape[:2], generator=rng) < share
        entry = torch.nn.functional.one_hot(
            torch.randint(0, x.shape[2], x.shape[:2], generator=rng), x.shape[2]
        ).bool() | (poison < 0)
        args[name] = torch.where(bad[:, :, None] & entry, poison, x)


def scattered(x, order):
    """Put row i of each request b at order[b, i]. Rows that no index names are NaN."""
    out = x.new_full((len(x), x.shape[1] + 2, x.shape[2]), torch.nan)
    out.scatter_(1, order[:, :, None].expand_as(x), x)
    return out


def linked_children(parents, rng):
    """Return (first_child, next_sibling) of every node, with siblings in random order."""
    B, N = parents.shape
    first, following = torch.full((B, N), -1, dtype=torch.int32), torch.full((B, N), -1, dtype=torch.int32)
    for b in range(B):
        for i in (1 + torch.randperm(N - 1, generator=rng)).tolist():
            parent = int(parents[b, i])
            if 0 <= parent < i:
                following[b, i] = first[b, parent]
                first[b, parent] = i
    return first, following

# SPDX-License-Identifier: Apache-2.0
"""Verification of draft trees in eager torch, request by request.

It computes float32 distributions of the visited rows only, and draws with torch.rand and torch.multinomial.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def verify(method: str, tree: tuple, target: torch.Tensor, draft: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    """Return tokens [B, L+1], padded with -1. stats [B, N, 4]: the draft's."""
    parents, tokens, _, draft_nodes = tree
    B, K, L = draft_nodes.shape
    accept = RULES[method]
    out = torch.full((B, L + 1), -1)
    for b, (kin, names, drafts) in enumerate(zip(parents.tolist(), tokens.tolist(), draft_nodes.tolist())):
        node = 0
        for depth in range(L + 1):
            if method in ("kseq", "recursive"):
                children = (
                    [nodes[depth] for nodes in drafts if (depth == 0 or nodes[depth - 1] == node) and nodes[depth] > 0]
                    if depth < L
                    else []
                )
            else:
                children = [i for i, parent in enumerate(kin) if parent == node and i > 0]
            child, rest = accept(
                target[b, node], lambda at=node: law(draft[b, at], stats[b, at]), [names[i] for i in children]
            )
            if child is None:
                out[b, depth] = rest if isinstance(rest, int) else int(torch.multinomial(rest, 1))
                break
            node = children[child]
            out[b, depth] = names[node]
    return out


def law(z: torch.Tensor, stats: torch.Tensor) -> torch.Tensor:
    scale, _, log_norm, top = stats.tolist()
    return z.float().sub_(top).mul_(scale).sub_(log_norm).exp_()


def chance() -> float:
    return torch.rand(()).item()


# A rule takes (target row, () -> draft's distribution, the children's tokens). It returns (accepted child, None), or
# (None, weights of the final token or the token itself).


def recursive(z: torch.Tensor, q_of: Callable, tokens: list[int], replacement: bool = True):
    r = z.softmax(-1, dtype=torch.float32)
    q = q_of() if tokens else None
    for i, t in enumerate(tokens):
        if chance() * q[t].item() < r[t].item():
            return i, None
        r = (r - q).clamp_(min=0)
        r /= r.sum()
        if not replacement:
            q[t] = 0
            q /= q.sum()
    return None, r


def without_replacement(z: torch.Tensor, q_of: Callable, tokens: list[int]):
    return recursive(z, q_of, tokens, replacement=False)


def kseq(z: torch.Tensor, q_of: Callable, tokens: list[int]):
    p = z.softmax(-1, dtype=torch.float32)
    if not tokens:
        return None, p
    q, k = q_of(), len(tokens)
    low, rho = 1.0, float(k)
    for _ in range(20):
        middle = (low + rho) / 2
        beta = torch.minimum(q, p / middle).sum().item()
        low, rho = (low, middle) if 1 - (1 - beta) ** k <= middle * beta else (middle, rho)
    for i, t in enumerate(tokens):
        if chance() * rho * q[t].item() < p[t].item():
            return i, None
    return None, (p - rho * q).clamp_(min=0)


def target_only(z: torch.Tensor, q_of: Callable, tokens: list[int]):
    p, u, seen = z.softmax(-1, dtype=torch.float32), chance(), 0.0
    for i, t in enumerate(tokens):
        seen += p[t].item()
        if u < seen:
            return i, None
    p[tokens] = 0
    return None, p


def greedy(z: torch.Tensor, q_of: Callable, tokens: list[int]):
    best = int(z.argmax())
    return (tokens.index(best), None) if best in tokens else (None, best)


RULES = {
    "kseq": kseq,
    "recursive": recursive,
    "recursive_without_replacement": without_replacement,
    "target_only": target_only,
    "greedy": greedy,
}

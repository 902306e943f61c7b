# SPDX-License-Identifier: Apache-2.0
"""K drafts as one prefix tree, so that the target scores every shared prefix once."""

from typing import NamedTuple

import torch


class Tree(NamedTuple):
    """Node 0 is the last committed token; parents[i] < i; a parent of -1 at i > 0 marks padding."""

    parents: torch.Tensor  # [B, N] int32, -1 for the root and for padding
    tokens: torch.Tensor  # [B, N] int64, -1 for the root and for padding
    multiplicity: torch.Tensor | None = None  # [B, N] int32: how many drafts pass through the node; K at the root
    draft_nodes: torch.Tensor | None = (
        None  # [B, K, L] int32: the node that draft k passes through at level l, -1 past its end
    )


def build_tree(draft_tokens):
    """draft_tokens [B, K, L] -> Tree with N = K * L + 1. An id below 0 ends its draft.

    Nodes are numbered level by level, inside a level by the first draft that passes through. So parents come before
    children, siblings stand in draft order, the padding is one tail, and the tree of the first l levels is a prefix of
    the tree of all of them: a drafter that works level by level never renumbers what is cached. The number of a node is
    the nodes of the levels above plus the new nodes of earlier drafts, one prefix sum per level over K flags.

    draft_nodes keeps what merging loses: which draft stood where. K-SEQ and recursive rejection with replacement test
    drafts in draft order, A, B, A and not A, A, B (SpecTr, Sun et al. 2023; SpecInfer, Miao et al. 2023).
    """
    B, K, L = draft_tokens.shape
    N = K * L + 1
    tree = Tree(
        torch.full((B, N), -1, dtype=torch.int32, device="cpu"),
        torch.full((B, N), -1, dtype=torch.int64, device="cpu"),
        torch.zeros(B, N, dtype=torch.int32, device="cpu"),
        torch.full((B, K, L), -1, dtype=torch.int32, device="cpu"),
    )
    for b, drafts in enumerate(draft_tokens.tolist()):
        tree.multiplicity[b, 0] = K
        at, count, known = [0] * K, 1, {}
        for level in range(L):
            for k in range(K):
                token = drafts[k][level]
                if at[k] < 0 or token < 0:
                    at[k] = -1
                    continue
                if (at[k], token) not in known:
                    known[at[k], token] = count
                    tree.parents[b, count], tree.tokens[b, count] = at[k], token
                    count += 1
                at[k] = known[at[k], token]
                tree.multiplicity[b, at[k]] += 1
                tree.draft_nodes[b, k, level] = at[k]
    return tree

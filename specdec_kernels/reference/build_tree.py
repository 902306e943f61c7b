# SPDX-License-Identifier: Apache-2.0
"""Merging of K drafts into one prefix tree, so that the target scores every shared prefix once."""

from typing import NamedTuple

import torch


class Tree(NamedTuple):
    """A batch of trees. Node 0 is the last committed token; parents[i] < i; a parent of -1 at i > 0 marks padding."""

    parents: torch.Tensor  # [B, N] int32, -1 for the root and for padding
    tokens: torch.Tensor  # [B, N] int64, -1 for the root and for padding
    multiplicity: torch.Tensor | None = None  # [B, N] int32: number of drafts through the node; K at the root
    draft_nodes: torch.Tensor | None = None  # [B, K, L] int32: the node of draft k at level l, -1 after its end


def build_tree(draft_tokens):
    """Merge draft_tokens [B, K, L] -> Tree with N = K * L + 1. An id below 0 ends its draft.

    Nodes are numbered level by level, and within a level by the first draft through them. Parents therefore come before
    children, siblings are in draft order, and padding comes last. The tree of the first l levels is a prefix of the
    whole tree, so a drafter that works level by level never renumbers cached nodes. A node's number is the number of
    nodes in the levels above, plus that of new nodes of earlier drafts in its level: one prefix sum over K flags per
    level.

    draft_nodes records which draft passes through which node; the merged tree alone does not show it. K-SEQ and
    recursive rejection with replacement need it to test drafts in draft order, for example A, B, A instead of A, A, B
    (SpecTr, Sun et al. 2023; SpecInfer, Miao et al. 2023).
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

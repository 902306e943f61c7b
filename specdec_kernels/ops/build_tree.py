# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call
from specdec_kernels.ops._fake import fake
from specdec_kernels.reference.build_tree import Tree

_build_tree = _call.op("build_tree")


def build_tree(draft_tokens: torch.Tensor) -> Tree:
    """Merge the K drafts of each request into a prefix tree, so that the target scores every shared prefix once.

    Node 0 is the last committed token. The other nodes are numbered level by level, and within a level in the order of
    the first draft that passes through each. So parents come before children, siblings are in draft order, and all
    padding comes last. The tree of the first l levels is a prefix of the whole tree, so a drafter that works level by
    level never renumbers nodes that it has cached. ``draft_nodes`` keeps the order of drafts, which merging loses:
    drafts A, B, A are tested in that order, not as A, A, B.

    Shapes depend on K and L alone, not on how many prefixes are shared, so nothing waits for the device.

    Args:
        draft_tokens: [B, K, L] int32 or int64, any strides. An id below 0 ends its draft. K is at most 1024.

    Returns:
        Tree of N = K * L + 1 nodes: ``parents`` [B, N] int32 (-1 for the root and for padding), ``tokens`` [B, N] int64
        (-1 there), ``multiplicity`` [B, N] int32, the number of drafts through a node (K at the root, 0 at padding),
        and ``draft_nodes`` [B, K, L] int32, the node that each draft passes through at each level, -1 past its end.
        Engines that have trees need not call this: ``verify_tree`` and ``tree_mask`` take their parents directly.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> tree = build_tree(torch.tensor([[[5, 7], [6, 7], [5, 8]]]))
        >>> tree.parents.tolist(), tree.tokens.tolist()
        ([[-1, 0, 0, 1, 2, 1, -1]], [[-1, 5, 6, 7, 7, 8, -1]])
        >>> tree.draft_nodes.tolist()
        [[[1, 3], [2, 4], [1, 5]]]

    Source: SpecInfer, Miao et al. 2023 (token trees); SpecTr, Sun et al. 2023 (draft order).
    """
    return Tree(*_build_tree(draft_tokens))


@fake("build_tree")
def _(draft_tokens):
    B, K, L = draft_tokens.shape
    nodes = (B, K * L + 1)
    return (
        draft_tokens.new_empty(nodes, dtype=torch.int32),
        draft_tokens.new_empty(nodes, dtype=torch.int64),
        draft_tokens.new_empty(nodes, dtype=torch.int32),
        draft_tokens.new_empty((B, K, L), dtype=torch.int32),
    )

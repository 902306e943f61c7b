# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake
from specdec_kernels.reference.build_tree import Tree
from specdec_kernels.registry import MAX_NODES

_grow_tree = _call.op("grow_tree")


def grow_tree(log_q: torch.Tensor, tokens: torch.Tensor, nodes: int) -> Tree:
    """Return a tree of the most probable draft paths for each request, from candidates that are independent per depth.

    A block drafter (DFlash, DDTree) gives K candidates for each of the next L positions, independent of the tokens
    before them. So all nodes of one depth have the same candidates as children, and a node's score is the sum of
    ``log_q`` along its path. The tree holds the root and the ``nodes - 1`` nodes of largest score. Of all trees of this
    size it has the largest sum of path probabilities. That sum is the expected number of accepted drafts if the target
    has the draft's distribution.

    Nodes are numbered by descending score, and parents come before their children. Scores are summed in float32, from
    the root down. Ties go to the smaller depth, then to the better rank among the candidates of that depth, then to the
    parent with the lower number. Candidates are ranked by descending ``log_q``, and equal ones by index. So a smaller
    tree is always a prefix of a larger one.

    The choice of nodes depends only on the draft's probabilities, never on a drawn token, and siblings are distinct. So
    verify with ``method="target_only"``, or "greedy", without draft rows: the output has the target's distribution.

    A candidate is left out of its depth if its ``log_q`` is above 0, NaN or -inf, if its token is outside [0, 2^24), or
    if a valid candidate ranked before it has the same token. The tree ends before the first depth without candidates.

    Args:
        log_q: [B, L, K] float32, any strides, the logarithm of the draft's probability of each candidate. The first
            min(L, nodes - 1) depths may hold at most 4,096 candidates in all.
        tokens: [B, L, K] int32 or int64, any strides, the token of each candidate.
        nodes: N, the number of nodes including the root, in [1, 1024].

    Returns:
        Tree: ``parents`` [B, N] int32 (-1 for the root and for padding) and ``tokens`` [B, N] int64 (-1 there). A
        request with fewer than N nodes has padding at its end. ``multiplicity`` and ``draft_nodes`` are None.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. The values in ``log_q`` and
        ``tokens`` never raise.

    Example:
        >>> log_q = torch.tensor([[[0.6, 0.3], [0.7, 0.2]]]).log()
        >>> tree = grow_tree(log_q, torch.tensor([[[5, 6], [7, 8]]]), 5)  # 5: .6, 5 7: .42, 6: .3, 6 7: .21
        >>> tree.parents.tolist(), tree.tokens.tolist()
        ([[-1, 0, 1, 0, 3]], [[-1, 5, 7, 6, 7]])

    Source: DDTree (trees of the best nodes); DFlash, arXiv 2602.06036 (candidates per position).
    """
    op = "grow_tree"
    nodes = _check.integer(op, "nodes", nodes, 1, MAX_NODES, f"in [1, {MAX_NODES}]")
    return Tree(*_grow_tree(log_q, tokens, nodes))


@fake("grow_tree")
def _(log_q, nodes):
    shape = (log_q.size(0), nodes)
    return log_q.new_empty(shape, dtype=torch.int32), log_q.new_empty(shape, dtype=torch.int64)

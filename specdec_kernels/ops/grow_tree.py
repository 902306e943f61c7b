# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake
from specdec_kernels.reference.build_tree import Tree
from specdec_kernels.registry import MAX_NODES

_grow_tree = _call.op("grow_tree")


def grow_tree(log_q: torch.Tensor, tokens: torch.Tensor, nodes: int) -> Tree:
    """Return each request's tree of the likeliest paths through independent candidates per depth, best node first.

    A block drafter (DFlash, DDTree) gives K candidates for each of the next L positions, whatever stands before them.
    So each node of depth l has the same K candidates as children, and a node's score is the sum of ``log_q`` along its
    path. The tree holds the ``nodes - 1`` nodes of largest score below the root. Of all trees with so many nodes it has
    the largest sum of path probabilities, which is the expected number of accepted tokens if the target agrees.

    Nodes are numbered from the best down, and parents come before their children. Scores are float32 sums, added from
    the root on. Of equal scores the lesser depth comes first, then the lower rank among the candidates of the depth,
    then the lower number of the parent. Candidates are ranked by ``log_q``, of equal ones by index. So a tree of fewer
    nodes is the beginning of one of more.

    The choice of nodes depends on the draft alone, never on a token drawn, and siblings are distinct. So verify with
    ``method="target_only"``, or "greedy", without draft rows: the output follows the target.

    A candidate is left out at its depth if its ``log_q`` is above 0, NaN or -inf, if its token lies outside [0, 2^24),
    or if a candidate of lower rank has the same token. Where a depth has no candidates the tree ends.

    Args:
        log_q: [B, L, K] float32, any strides, the logarithm of the draft's probability of each candidate. The depths
            that a tree can reach, at most ``nodes - 1``, hold at most 4,096 candidates.
        tokens: [B, L, K] int32 or int64, any strides: their tokens.
        nodes: N, the size of the tree with its root, in [1, 1024].

    Returns:
        Tree: ``parents`` [B, N] int32 (-1 for the root and for padding) and ``tokens`` [B, N] int64 (-1 there). Padding
        is one tail, where a request has fewer paths than nodes. ``multiplicity`` and ``draft_nodes`` are None.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. No value of ``log_q`` or ``tokens``
        raises.

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

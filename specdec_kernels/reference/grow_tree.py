# SPDX-License-Identifier: Apache-2.0
"""The tree of the likeliest paths through independent candidates per depth."""

import heapq

import numpy
import torch

from ..registry import MAX_VOCABULARY
from .build_tree import Tree


def grow_tree(log_q, tokens, nodes):
    """Return the Tree of at most `nodes` nodes, including the root, from log_q and tokens [B, L, K].

    A heap holds the children of all nodes added so far, and the best of them is the next node. Scores are summed in
    float32 as in the ops, so that ties are the same.
    """
    B, L, _ = log_q.shape
    parents = torch.full((B, nodes), -1, dtype=torch.int32, device="cpu")
    out = torch.full((B, nodes), -1, dtype=torch.int64, device="cpu")
    for b in range(B):
        levels = [candidates(log_q[b, level].tolist(), tokens[b, level].tolist()) for level in range(L)]
        heap, count = [], 0
        scores, depths = [numpy.float32(0)], [0]
        while True:
            if depths[count] < L:
                for rank, (q, token) in enumerate(levels[depths[count]]):
                    with numpy.errstate(over="ignore"):
                        score = scores[count] + numpy.float32(q)
                    if numpy.isfinite(score):
                        heapq.heappush(heap, (-score, depths[count] + 1, rank, count, token))
            count += 1
            if not heap or count == nodes:
                break
            cost, depth, _, parent, token = heapq.heappop(heap)
            scores.append(-cost)
            depths.append(depth)
            parents[b, count], out[b, count] = parent, token
    return Tree(parents, out)


def candidates(log_q, tokens):
    """Return the (log_q, token) of one depth, the likeliest first.

    Invalid probabilities and tokens are left out. A token that occurs twice keeps its largest probability.
    """
    found = {}
    for q, token in sorted(zip(log_q, tokens), key=lambda x: -x[0] if x[0] == x[0] else 0):
        if -float("inf") < q <= 0 and 0 <= token < MAX_VOCABULARY:
            found.setdefault(token, q)
    return [(q, token) for token, q in found.items()]

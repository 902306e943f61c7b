# SPDX-License-Identifier: Apache-2.0
"""The decisions of FlashInfer's and SGLang's kernels by their documentation, one request at a time in float64. A coin
is their uniform random number."""

import numpy as np


def drawn(weights, coin):
    """Return the first id whose running sum exceeds the coin times the total."""
    return int(np.argmax(np.cumsum(weights) > coin * weights.sum()))


def chain(p, q, drafts, coins, final):
    """Return (accepted drafts, the token after them): p [G+1, V], q [G, V]."""
    for i, d in enumerate(drafts):
        if not coins[i] * q[i, d] < p[i, d]:
            return i, drawn(np.maximum(p[i] - q[i], 0), final)
    return len(drafts), drawn(p[len(drafts)], final)


def block(p, q, drafts, coins, final):
    """Return the same with block verification: the longest prefix whose coin lies below its acceptance probability h is
    kept."""
    G = len(drafts)
    r, tau, scale = 1.0, 0, 1.0
    for i, d in enumerate(drafts):
        r = min(1.0, r * p[i, d] / q[i, d])
        left = np.maximum(r * p[i + 1] - q[i + 1], 0).sum() if i + 1 < G else 0.0
        h = r if i + 1 == G else left / (left + 1 - r) if left + 1 - r > 0 else 1.0
        if coins[i] < h:
            tau, scale = i + 1, r
    weights = p[G] if tau == G else np.maximum(scale * p[tau] - q[tau], 0)
    return tau, drawn(weights, final)


def tree(first, sibling, tokens, p, coins, final, depth, single=1.0, acc=1.0, scratch=None):
    """Return (path, tokens after its nodes). Each visited node has one coin, compared with the running sum of its
    children's p. p of the tokens of rejected children goes to scratch [N, V]."""
    node, path, out = 0, [0], []
    while True:
        weights, seen, child = p[node].copy(), 0.0, first[node] if len(out) < depth else -1
        while child >= 0:
            t = tokens[child]
            seen += p[node, t]
            if coins[node] < seen / acc or p[node, t] >= single:
                break
            weights[t] = 0.0
            if scratch is not None:
                scratch[node, t] = p[node, t]
            child = sibling[child]
        if child < 0:
            return path, [*out, drawn(weights, final)]
        node = child
        path.append(node)
        out.append(tokens[node])


def greedy(first, sibling, tokens, chosen, depth):
    node, path, out = 0, [0], []
    while True:
        out.append(chosen[node])
        child = first[node] if len(path) <= depth else -1
        while child >= 0 and tokens[child] != chosen[node]:
            child = sibling[child]
        if child < 0:
            return path, out
        node = child
        path.append(node)


def eagle(rng, topk, depth, selected):
    """Return a drafter's tree: (the parent's number of each group of drafts, the selected drafts' numbers in ascending
    order, the parent's number of each of these).

    The root has topk drafts. At each later level each of the topk best drafts of the level before has topk drafts. A
    child scores less than its parent, so a selected draft's parent is selected too.
    """
    scores, parent_of, groups = list(rng.random(topk)), [-1] * topk, [-1]
    level = list(range(topk))
    for _ in range(depth - 1):
        groups += level
        below = []
        for number in level:
            for _ in range(topk):
                below.append(len(scores))
                scores.append(scores[number] * rng.random())
                parent_of.append(number)
        level = sorted(below, key=lambda n: -scores[n])[:topk]
    best = sorted(sorted(range(len(scores)), key=lambda n: -scores[n])[:selected])
    return groups, best, [parent_of[n] for n in best]

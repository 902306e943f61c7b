# SPDX-License-Identifier: Apache-2.0
"""Exact distribution of the tokens emitted by one verified tree, by enumeration: small vocabularies only."""

import itertools
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch

from .build_tree import Tree, build_tree
from .chance import outcomes
from .law import Law
from .rules import resolved
from .rules.one_step import law_of_row
from .tree_rules import RULES
from .tree_rules.request import Draft, Request, one_hot
from .verify_tree import law_of_draft


class Logs(NamedTuple):
    """A row given by the logarithms of its weights. After a few draws, the weights may be too small for a float64."""

    x: np.ndarray  # [V], not normalised


def probabilities(row):
    if not isinstance(row, Logs):
        return np.asarray(row, dtype=np.float64)
    w = np.exp(row.x - row.x.max())
    return w / w.sum()


def logs(row):
    with np.errstate(divide="ignore"):
        return row.x if isinstance(row, Logs) else np.log(probabilities(row))


def tree_law(tree, p, q, method, one_hot_nodes=(), rule="exact", alpha=None, p1=None, q1=None):
    """Return {emitted tokens: probability} for one given tree (B = 1), by enumeration of the method's decisions.

    p(prefix) -> [V] float64 or Logs: the target's distribution after a tuple of tokens. q(prefix) -> [V] or Logs: the
    distribution that children were drawn from; None: one-hot drafts. one_hot_nodes: nodes that are one-hot drafts
    (draft_row -1) in a tree with others. p1, q1: the same rows unscaled (T = 1, no filters), by default p and q. A
    one-hot draft is the same unscaled, so q1 is not asked for it.
    """
    law = defaultdict(float)
    for step, probability in walks(tree, p, q, method, one_hot_nodes, rule, alpha, p1, q1):
        law[tuple(step.tokens)] += probability
    return dict(law)


def walks(tree, p, q, method, one_hot_nodes=(), rule="exact", alpha=None, p1=None, q1=None):
    """Yield every walk of the method through one tree, with its probability."""
    request = request_of(tree, p, q, method, one_hot_nodes, resolved("tree_law", "token", rule, alpha), p1, q1)
    return outcomes(lambda chance: RULES[method](request, chance))


def request_of(tree, p, q, method, one_hot_nodes, rule, p1=None, q1=None):
    parents, tokens = tree.parents[0].tolist(), tree.tokens[0].tolist()
    drafts = None if tree.draft_nodes is None else tree.draft_nodes[0].tolist()
    prefix = {0: ()}
    for i, parent in enumerate(parents):
        if parent >= 0:
            prefix[i] = (*prefix[parent], tokens[i])

    def target(node):
        row = probabilities(p(prefix[node]))
        peak = int(np.argmax(row))
        if method == "greedy":
            row = np.eye(1, len(row), peak)[0]
        return Law(row, True, method == "greedy", peak)

    wide = len(probabilities(p(())))
    draft_row = [-1 if q is None or child in one_hot_nodes else parent for child, parent in enumerate(parents)]

    def draft(child):
        if draft_row[child] < 0:
            return one_hot(tokens[child], wide)
        row = q(prefix[parents[child]])
        log_q = logs(row) if isinstance(row, Logs) else None
        return Draft(probabilities(row), True, True, log_q=log_q)

    def unscaled(node, child):
        given = q1 is not None and draft_row[child] >= 0
        return (
            target(node) if p1 is None else law_of_row(probabilities(p1(prefix[node]))),
            law_of_row(probabilities(q1(prefix[parents[child]]))) if given else law_of_draft(draft(child)),
        )

    rows = (target, draft, draft_row, wide)
    return Request(parents, tokens, *rows, len(parents), drafts, rule=rule, unscaled=unscaled)


def mixed(trees, p, q, method, rule="exact", alpha=None, p1=None, q1=None):
    """Return the distribution of the emitted tokens over drawn trees. trees yields (tree, probability)."""
    law = defaultdict(float)
    for tree, probability in trees:
        for tokens, mass in tree_law(tree, p, q, method, rule=rule, alpha=alpha, p1=p1, q1=q1).items():
            law[tokens] += probability * mass
    return dict(law)


def paths(q, length):
    """Return every path of `length` tokens with its probability under q(prefix)."""
    law = {(): 1.0}
    for _ in range(length):
        law = {t + (x,): m * float(w) for t, m in law.items() for x, w in enumerate(probabilities(q(t))) if w > 0}
    return law


def iid_drafts(q, K, L):
    """Yield every K-tuple of independent drafts of length L, as (draft_tokens [1, K, L], probability)."""
    for drafts in itertools.product(paths(q, L).items(), repeat=K):
        probability = float(np.prod([mass for _, mass in drafts]))
        yield torch.tensor([t for t, _ in drafts], dtype=torch.int64, device="cpu").reshape(1, K, L), probability


def iid_trees(q, K, L):
    """Yield every tree of K independent drafts of length L merged by build_tree, with its probability."""
    for drafts, probability in iid_drafts(q, K, L):
        yield build_tree(drafts), probability


def separate_trees(q, K, L):
    """Yield every tree with K independent children at each node of L levels; duplicates stay separate nodes."""
    return grown_trees(q, [K] * L, replacement=True)


def distinct_trees(q, widths):
    """Yield every tree with widths[l] children at each node of level l, drawn without replacement."""
    return grown_trees(q, widths, replacement=False)


def grown_trees(q, widths, replacement):
    states = [([(-1, -1, ())], 0, 1.0)]  # nodes (parent, token, prefix), first node of the last level, probability
    for width in widths:
        grown = []
        for nodes, first, probability in states:
            branches = [([], 1.0)]
            for parent in range(first, len(nodes)):
                prefix = nodes[parent][2]
                choices = children(q(prefix), width, replacement)
                branches = [
                    (new + [(parent, x, (*prefix, x)) for x in ids], mass * m)
                    for new, mass in branches
                    for ids, m in choices
                ]
            grown += [(nodes + new, len(nodes), probability * mass) for new, mass in branches]
        states = grown
    for nodes, _, probability in states:
        yield plain_tree([node[0] for node in nodes], [node[1] for node in nodes]), probability


def children(row, width, replacement):
    """Return the ordered draws of `width` ids from one row: [(ids, probability)].

    Without replacement, a draw has fewer ids if none is left to draw.
    """
    drawn = [((), 1.0)]
    for _ in range(width):
        longer = []
        for ids, mass in drawn:
            left = logs(row).copy()
            if not replacement:
                left[list(ids)] = -np.inf
            w = probabilities(Logs(left)) if left.max() > -np.inf else np.zeros(len(left))
            longer += [((*ids, x), mass * w[x]) for x in np.flatnonzero(w)] or [(ids, mass)]
        drawn = longer
    return [(tuple(int(x) for x in ids), float(mass)) for ids, mass in drawn]


def plain_tree(parents, tokens):
    """Return a Tree of one request from lists."""
    return Tree(
        torch.tensor([parents], dtype=torch.int32, device="cpu"),
        torch.tensor([tokens], dtype=torch.int64, device="cpu"),
    )


def expected_length(law):
    return sum(len(tokens) * mass for tokens, mass in law.items())

# SPDX-License-Identifier: Apache-2.0
"""One request's tree and rows as the rules see them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Draft(NamedTuple):
    """The law that a child was drawn from."""

    q: np.ndarray  # [wide] probabilities, 0 where the row holds none
    valid: bool
    whole: bool  # a law as a whole; a test looks at one entry of a probability row and does not notice the rest
    hot: int | None = None  # the one token of a greedy row or of a one-hot draft
    log_q: np.ndarray | None = None  # [wide] of a row of logits


class Request:
    """wide = max(V, Vq): laws of both sides come padded with zeros to it.

    parents, tokens: N ids. target(node) -> Law [wide]. draft(child) -> Draft. draft_row: N numbers of
    the rows they were drawn from, -1: one-hot at the node's own token. draft_nodes [K][L] or None.
    links: (first_child, next_sibling), N ids each, or None for node order. rule: (name, alpha), what stands in place of
    p where a node has children; unscaled(node, child) -> the Laws of p's row and of the child's q row at T = 1 without
    filters.
    """

    def __init__(
        self,
        parents,
        tokens,
        target: Callable,
        draft: Callable | None,
        draft_row,
        wide,
        max_depth,
        draft_nodes=None,
        links=None,
        rule=("exact", ()),
        unscaled=None,
        vocab=None,
    ):
        self.rule, self.unscaled, self.vocab = rule, unscaled, vocab
        self.tokens, self.target, self.draft, self.wide, self.max_depth = tokens, target, draft, wide, max_depth
        self.parents, self.draft_row, self.draft_nodes, self.known = parents, draft_row, draft_nodes, {}
        n = len(parents)
        self.children = [[] for _ in range(n)]
        for i in range(1, n):
            if 0 <= parents[i] < i:
                self.children[parents[i]].append(i)
        if links is not None:
            self.children = [self.linked(node, *links) for node in range(n)]

    def bad(self):
        """Whether a parent does not come before its node, or a draft goes on to what is no child."""
        steps = [
            (parent, node) for nodes in self.draft_nodes or [] for parent, node in zip([0, *nodes], nodes) if node != -1
        ]
        return any(not -1 <= parent < i for i, parent in enumerate(self.parents)) or any(
            not self.is_child(*step) for step in steps
        )

    def is_child(self, node, child):
        return node < child < len(self.parents) and self.parents[child] == node

    def one_law(self, x, y):
        """Whether two children were drawn from one law."""
        row = self.draft_row[x]
        return row == self.draft_row[y] and (row >= 0 or self.tokens[x] == self.tokens[y])

    def once(self, key, make):
        """What does not depend on the decisions is made once."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def linked(self, node, first_child, next_sibling):
        """The list of a node's children by links; it ends at -1, at what is no child of the node, and after N nodes."""
        out, child = [], first_child[node]
        while self.is_child(node, child) and len(out) < len(self.parents):
            out.append(child)
            child = next_sibling[child]
        return out

    def tests_of_nodes(self, node, depth):
        """[(child, column)]: each child once, its own uniform."""
        return [(child, child) for child in self.children[node]] if depth < self.max_depth else []

    def tests_of_drafts(self, node, depth):
        """[(child, column)] in draft order: each draft that passes through the node and goes on to one of its
        children."""
        if self.draft_nodes is None:
            return self.tests_of_nodes(node, depth)
        levels = len(self.draft_nodes[0]) if self.draft_nodes else 0
        if depth >= min(self.max_depth, levels):
            return []
        passing = [k for k, nodes in enumerate(self.draft_nodes) if depth == 0 or nodes[depth - 1] == node]
        onward = [(self.draft_nodes[k][depth], k * levels + depth) for k in passing]
        return [(child, column) for child, column in onward if self.is_child(node, child)]


def one_hot(token, wide):
    return Draft(np.eye(1, wide, token)[0], True, True, token)

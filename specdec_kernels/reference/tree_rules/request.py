# SPDX-License-Identifier: Apache-2.0
"""One request of verify_tree: its tree and rows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Draft(NamedTuple):
    """The distribution that a child was drawn from."""

    q: np.ndarray  # [wide] probabilities, 0 for ids outside the row
    valid: bool  # the row can be used in a test, which reads only one entry of a row of probabilities
    whole: bool  # all entries of the row are valid
    hot: int | None = None  # the only token of a greedy row or of a one-hot draft
    log_q: np.ndarray | None = None  # [wide], for a row of logits


class Request:
    """A request's tree, and access to its rows.

    wide: the width to which rows of both sides are padded with zeros, at least max(V, Vq).
    parents, tokens: lists of N numbers.
    target(node): returns the Law of the node's children, [wide]. draft(child): returns the child's Draft.
    draft_row: for each node the index of the row that it was drawn from; -1: one-hot at the node's own token.
    draft_nodes: [K][L] or None.
    links: (first_child, next_sibling), N node numbers each; None: children are in node order.
    rule: (name, alpha). A rule that defines a distribution replaces p by it at nodes whose children are tested.
    unscaled(node, child): returns the Laws of p's row and of the child's row at T = 1 without filters.
    noise(node, depth): returns (seed, position) of a race.
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
        noise=None,
    ):
        self.rule, self.unscaled, self.vocab = rule, unscaled, vocab
        self.noise = noise or (lambda node, depth: None)
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
        """Return whether a parent does not come before its node, or a draft's next node is not a child."""
        steps = [
            (parent, node) for nodes in self.draft_nodes or [] for parent, node in zip([0, *nodes], nodes) if node != -1
        ]
        return any(not -1 <= parent < i for i, parent in enumerate(self.parents)) or any(
            not self.is_child(*step) for step in steps
        )

    def is_child(self, node, child):
        return node < child < len(self.parents) and self.parents[child] == node

    def one_law(self, x, y):
        """Return whether two children were drawn from the same distribution."""
        row = self.draft_row[x]
        return row == self.draft_row[y] and (row >= 0 or self.tokens[x] == self.tokens[y])

    def once(self, key, make):
        """Return make(), cached by key: for values that do not depend on decisions."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    def linked(self, node, first_child, next_sibling):
        """Return a node's children by links. The list ends at -1, at a node that is not a child, or after N nodes."""
        out, child = [], first_child[node]
        while self.is_child(node, child) and len(out) < len(self.parents):
            out.append(child)
            child = next_sibling[child]
        return out

    def tests_of_nodes(self, node, depth):
        """Return [(child, column)]: each child once, with a uniform of its own."""
        return [(child, child) for child in self.children[node]] if depth < self.max_depth else []

    def tests_of_drafts(self, node, depth):
        """Return [(child, column)] in draft order: one for each draft that passes through the node to a child.

        Without draft_nodes, the tests are those of tests_of_nodes().
        """
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

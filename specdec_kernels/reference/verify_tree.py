# SPDX-License-Identifier: Apache-2.0
"""Verification of a tree of drafts, one request at a time. The methods are in tree_rules/."""

from typing import NamedTuple

import numpy as np
import torch

from ..registry import TREE_METHODS
from .chance import GivenUniforms
from .entries import renumbered, width_of
from .law import Law, clean_q, padded
from .padded import first, present
from .race import of_tests, request_noise
from .rows import SAMPLING_FIELDS, Rows, of_request, rows_of
from .rules import per_request
from .sides import Verified
from .tree_rules import RULES
from .tree_rules.request import Draft, Request, one_hot
from .views import is_seen, seen_nodes


class VerifiedTree(NamedTuple):
    tokens: torch.Tensor  # [B, max_depth+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, max_depth+1] float64, ln of the target's probability of each emitted token
    status: torch.Tensor  # [B] int32
    path: torch.Tensor  # [B, max_depth+1] int32: the root and the accepted nodes, then -1

    @classmethod
    def of(cls, walks, B, width):
        path = torch.full((B, width), -1, dtype=torch.int32, device="cpu")
        for b, walk in enumerate(walks):
            path[b, : len(walk.path)] = torch.tensor(walk.path, dtype=torch.int32, device="cpu")
        return cls(*Verified.of(walks, B, width), path)


def verify_tree(
    tree,
    target,
    draft=None,
    *,
    method,
    max_depth=None,
    links=None,
    rule="exact",
    alpha=None,
    seed=None,
    offset=None,
    uniforms=None,
    num_requests=None,
    chance_type=GivenUniforms,
):
    """Verify one tree of draft tokens per request, and return a VerifiedTree.

    tree: (parents, tokens[, multiplicity, draft_nodes]), N nodes. target: [B, M, V]. draft: [B, Mq, Vq]. M and Mq are N
    unless the rows are given by index.

    Rows: node i has the target's row target.row[b, i], by default i. It was drawn from the draft's row draft.row[b, i],
    by default its parent's number. If draft.row is negative, or there is no draft, the node is a one-hot draft. An
    index out of range is an invalid row.

    rule, alpha: as in verify_chain. With the methods "kseq", "recursive", "recursive_without_replacement" and
    "traversal", a rule that defines a distribution replaces p by it at every node whose children are tested. The
    distribution is computed from p's row and the row that the first of these children was drawn from. At other nodes
    the token is drawn from p.
    The rule "thresholds" is for the method "target_only".

    uniforms: [B, columns + 1], those of the tests, then that of the final draw. If drafts are tested ("kseq" and
    "recursive" on a tree with draft_nodes), columns = K * L, and draft k at level l uses column k * L + l. Otherwise
    columns = N, and the test of node i uses column i. ("target_only" has one uniform per visited node, in that node's
    column.)

    chance_type: the class that makes a request's decisions.
    """
    target, draft = rows_of(target), rows_of(draft, draft=True)
    check(method, draft, tree, links)
    B, n = len(target.logits), present(num_requests, len(target.logits))
    rules = [checked_rule(method, *each) for each in per_request("verify_tree", n, "token", *first(n, rule, alpha))]
    draft_row = None if draft is None else draft.row
    nodes = Nodes.of(tree, B, links, target.row, draft_row, TREE_METHODS[method].tests_drafts)
    max_depth = nodes.depth if max_depth is None else max_depth
    random = of_tests("verify_tree", method, seed, offset, uniforms)
    chances = chance_type.of_requests("verify_tree", B, nodes.columns, *random)
    if method == "greedy":
        target = target._replace(**dict.fromkeys(Rows._fields[SAMPLING_FIELDS]), stats=None)
        target = target._replace(temperature=0.0 if target.kind == "logits" else None)
    if not TREE_METHODS[method].reads_draft:
        draft = None
    nodes, target, draft = nodes.seen(target, draft, n)
    vocab = target.logits.shape[-1]
    wide = width = max(vocab, width_of(draft))
    walks = []
    for b, chance in enumerate(chances[:n]):
        target_rows, draft_rows = nodes.rows(b, draft is not None)
        names = nodes.tokens[b].tolist()
        if draft is not None and draft.ids is not None:
            names, wide = renumbered(names, width)
        own = (rows and of_request(rows, b, lambda t, b=b: t[b]) for rows in (target, draft))
        p_side, q_side = map(chance.side, own)
        p, q = target_of(p_side, target_rows, wide, method), draft_of(q_side, draft_rows, names, wide)
        p1 = target_of(p_side.unscaled(), target_rows, wide, "")
        q1 = draft_of(q_side.unscaled(), draft_rows, names, wide)
        unscaled = lambda node, child, p=p1, q=q1: (p(node), law_of_draft(q(child)))
        keys = seed[b] if seed is not None and offset is None else None
        noise = request_noise(b, B, seed, offset, keys)
        shape = (nodes.drafts(b), nodes.siblings(b), rules[b], unscaled, vocab, noise)
        request = Request(nodes.parents[b].tolist(), names, p, q, draft_rows, wide, max_depth, *shape)
        walks.append(RULES[method](request, chance))
    return VerifiedTree.of(walks, B, max_depth + 1)


def check(method, draft, tree, links):
    if method not in RULES:
        raise ValueError(f"verify_tree: method must be one of {', '.join(map(repr, RULES))}, got {method!r}")
    if method == "kseq" and draft is None:
        raise ValueError("verify_tree: method 'kseq' needs draft, got None")
    if links is not None and TREE_METHODS[method].tests_drafts and (*tree, None, None)[3] is not None:
        raise ValueError(
            f"verify_tree: links give no order where method {method!r} tests the drafts of draft_nodes, got both"
        )


def checked_rule(method, name, alpha):
    if name not in TREE_METHODS[method].rules:
        raise ValueError(f"verify_tree: rule {name} is not defined for method {method!r}")
    return name, alpha


class Nodes(NamedTuple):
    """The trees of a batch."""

    parents: torch.Tensor  # [B, N]
    tokens: torch.Tensor  # [B, N]
    draft_nodes: torch.Tensor | None  # [B, K, L] if the method tests drafts
    links: tuple | None
    target_row: torch.Tensor | None
    draft_row: torch.Tensor | None
    depth: int  # an upper bound of the depth of an accepted node: N - 1, or L with draft_nodes
    columns: int  # columns of uniforms for the tests; the final draw's is not counted

    @classmethod
    def of(cls, tree, B, links, target_row, draft_row, tests_drafts):
        parents, tokens, _, draft_nodes = (*tree, None, None)[:4]
        N = parents.shape[-1]
        parents, tokens = parents.expand(B, N), tokens.expand(B, N)
        depth = N - 1 if draft_nodes is None else draft_nodes.shape[2]
        draft_nodes = draft_nodes if tests_drafts else None
        columns = N if draft_nodes is None else draft_nodes.shape[1] * draft_nodes.shape[2]
        return cls(parents, tokens, draft_nodes, links, target_row, draft_row, depth, columns)

    def seen(self, target, draft, n):
        """Return these trees and both sides, with views applied to the rows of the first n requests."""
        nodes, B = self, len(self.parents)
        rows = [self.rows(b, draft is not None) for b in range(B)]
        if is_seen(target):
            positions = [range(self.parents.shape[1])] * B  # a node's own row
            target = seen_nodes(target, self.parents, self.tokens, [x for x, _ in rows], positions, n)
            nodes = nodes._replace(target_row=target.row)
        if draft is not None and is_seen(draft):
            positions = self.parents.tolist()  # where a node was drawn
            draft = seen_nodes(draft, self.parents, self.tokens, [x for _, x in rows], positions, n)
            nodes = nodes._replace(draft_row=draft.row)
        return nodes, target, draft

    def rows(self, b, drawn):
        """Return for each node the indices of the target's row and of the draft's row (-1: a one-hot draft)."""
        target = range(self.parents.shape[1]) if self.target_row is None else self.target_row[b].tolist()
        draft = (self.parents if self.draft_row is None else self.draft_row)[b].clamp(min=-1).tolist()
        return target, draft if drawn else [-1] * len(draft)

    def drafts(self, b):
        return None if self.draft_nodes is None else self.draft_nodes[b].tolist()

    def siblings(self, b):
        return None if self.links is None else [x[b].tolist() for x in self.links]


def law_of_draft(draft):
    return Law(draft.q, draft.valid, draft.hot is not None, draft.hot or 0)


def target_of(side, row_of, wide, method):
    """Return a function node -> Law."""
    law_of = side.law()

    def target(node):
        if not 0 <= row_of[node] < len(side.rows.logits):
            return Law(np.zeros(wide), False, False, 0)
        law = law_of(row_of[node])
        if method == "greedy" and side.rows.kind == "probs" and law.valid:
            law = law._replace(p=np.eye(1, len(law.p), law.fallback)[0], greedy=True)
        return padded(law, wide)

    return target


def draft_of(side, row_of, tokens, wide):
    """Return a function child -> Draft."""
    law_of = None if side.rows is None else side.law()

    def draft(child):
        row = row_of[child]
        if row < 0:
            hot = one_hot(tokens[child], wide)
            return hot._replace(q=side.exact(hot.q))
        if row >= len(side.rows.logits):
            return Draft(np.zeros(wide), False, False)
        law = padded(law_of(row), wide)
        hot = law.fallback if law.greedy else None
        return Draft(clean_q(law.p), law.valid or law.gathered, law.valid, hot, law.log_p)

    return draft

# SPDX-License-Identifier: Apache-2.0
"""Verification of a tree of drafts, one request at a time; the rules stand in tree_rules/, one method a file."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .chance import Coins
from .law import Law, clean_q, numpy_rows, padded
from .rules import LAWS, per_request
from .tree_rules import OF_LAWS, RULES, TEST_DRAFTS
from .tree_rules.request import Draft, Request, one_hot
from .uniforms import given
from .uniforms import uniforms as philox_uniforms
from .verify_chain import side

NO_FILTERS = (None, None, None, None)


class VerifiedTree(NamedTuple):
    tokens: torch.Tensor  # [B, max_depth+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32
    logprobs: torch.Tensor  # [B, max_depth+1] float64, ln of the target law at each emitted token
    status: torch.Tensor  # [B] int32
    path: torch.Tensor  # [B, max_depth+1] int32: the root and the accepted nodes, then -1
    margin: torch.Tensor  # [B] float64: below 1 another answer is as right as this one


def verify_tree(
    tree,
    target_logits,
    draft_logits=None,
    *,
    method,
    max_depth=None,
    target_row=None,
    draft_row=None,
    links=None,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    target_stats=None,
    draft_stats=None,
    draft_temperature=None,
    draft_top_k=None,
    draft_top_p=None,
    draft_min_p=None,
    target_kind="logits",
    draft_kind="logits",
    rule="exact",
    alpha=None,
    seed=None,
    offset=None,
    uniforms=None,
):
    """tree (parents, tokens[, multiplicity, draft_nodes]), target_logits [B, M, V], draft_logits [B, M, Vq] ->
    VerifiedTree.

    Row of node i: target_row[b, i], by default i; the row that node i was drawn from: draft_row[b, i], by default its
    parent's number. A negative draft_row, or no draft_logits at all, is a one-hot draft; a row number out of range is
    an invalid row. rule, alpha: as verify_chain's. A rule that is a law stands in place of p at every node with
    children, made of p's row and the row that the first child under test was drawn from ("kseq", "recursive",
    "recursive_without_replacement", "traversal"); where a leaf is reached the token is drawn from p. "thresholds"
    belongs to "target_only".
    uniforms: [B, columns + 1], tests first. Methods that test drafts ("kseq", "recursive", on a tree with draft_nodes):
    columns = K * L, draft k at level l in column k * L + l. Else columns = N, node i's test in column i ("target_only":
    the visited parent's coin in the parent's column).
    """
    if method not in RULES:
        raise ValueError(f"verify_tree: method must be one of {', '.join(map(repr, RULES))}, got {method!r}")
    if method == "kseq" and draft_logits is None:
        raise ValueError("verify_tree: method 'kseq' needs draft_logits, got None")
    B = len(target_logits)
    rules = tree_rules_of(per_request("verify_tree", B, "token", rule, alpha), method)
    parents, tokens, _, draft_nodes = (*tree, None, None)[:4]
    tests_drafts = draft_nodes is not None and method in TEST_DRAFTS
    if tests_drafts and links is not None:
        raise ValueError(
            f"verify_tree: links give no order where method {method!r} tests the drafts of draft_nodes, got both"
        )
    vocab, N = target_logits.shape[-1], parents.shape[-1]
    parents, tokens = parents.expand(B, N), tokens.expand(B, N)
    if method in ("greedy", "target_only"):
        draft_logits = None
    if method == "greedy":
        temperature, top_k, top_p, min_p, target_stats = 0.0, None, None, None, None
    if max_depth is None:
        max_depth = N - 1 if draft_nodes is None else draft_nodes.shape[2]
    columns = draft_nodes.shape[1] * draft_nodes.shape[2] if tests_drafts else N
    if uniforms is None and seed is not None:
        uniforms = torch.cat([philox_uniforms(seed, offset, columns, 0), philox_uniforms(seed, offset, 1, 1)], 1)
    uniforms = np.zeros((B, columns + 1)) if uniforms is None else given(numpy_rows(uniforms))
    if uniforms.shape != (B, columns + 1):
        raise ValueError(f"verify_tree: uniforms must have shape [B={B}, {columns}+1], got {list(uniforms.shape)}")
    wide = max(vocab, 0 if draft_logits is None else draft_logits.shape[-1])

    def pick(value, b):  # this request's own parameter
        return value[b] if torch.is_tensor(value) and value.dim() else value

    out = VerifiedTree(
        torch.full((B, max_depth + 1), -1),
        torch.zeros(B, dtype=torch.int32),
        torch.zeros(B, max_depth + 1, dtype=torch.float64),
        torch.zeros(B, dtype=torch.int32),
        torch.full((B, max_depth + 1), -1, dtype=torch.int32),
        torch.zeros(B, dtype=torch.float64),
    )
    for b in range(B):
        p_params = [pick(x, b) for x in (temperature, top_k, top_p, min_p)]
        q_params = [pick(x, b) for x in (draft_temperature, draft_top_k, draft_top_p, draft_min_p)]
        draft_rows = parents[b].tolist() if draft_row is None else draft_row[b].tolist()
        target = target_of(
            target_logits[b], target_kind, pick(target_stats, b), p_params, pick_row(target_row, b, N), wide, method
        )
        draft = draft_of(
            None if draft_logits is None else draft_logits[b],
            draft_kind,
            pick(draft_stats, b),
            q_params,
            draft_rows,
            tokens[b].tolist(),
            wide,
        )
        target1 = target_of(target_logits[b], target_kind, None, NO_FILTERS, pick_row(target_row, b, N), wide, "")
        draft1 = draft_of(
            None if draft_logits is None else draft_logits[b],
            draft_kind,
            None,
            NO_FILTERS,
            draft_rows,
            tokens[b].tolist(),
            wide,
        )
        request = Request(
            parents[b].tolist(),
            tokens[b].tolist(),
            target,
            draft,
            wide,
            max_depth,
            draft_nodes[b].tolist() if tests_drafts else None,
            None if links is None else [x[b].tolist() for x in links],
            rules[b],
            lambda node, child, p=target1, q=draft1: (p(node)[0], law_of_draft(q(child)[0])),
            vocab,
        )
        chance = Coins(uniforms[b, :-1], float(uniforms[b, -1]))
        step = RULES[method](request, chance)
        n = len(step.tokens)
        out.tokens[b, :n], out.path[b, :n] = torch.tensor(step.tokens), torch.tensor(step.path, dtype=torch.int32)
        out.logprobs[b, :n] = torch.tensor(step.logprobs, dtype=torch.float64)
        out.num_accepted[b], out.status[b], out.margin[b] = n - 1, step.status, chance.margin
    return out


def tree_rules_of(rules, method):
    """The rules that a method takes: target_only "thresholds", greedy none, the others every law."""
    for name, _ in rules:
        if name != "exact" and not (
            method in OF_LAWS and name in LAWS or method == "target_only" and name == "thresholds"
        ):
            raise ValueError(f"verify_tree: rule {name} is not defined for method {method!r}")
    return rules


def law_of_draft(draft):
    return Law(draft.q, draft.err, draft.valid, draft.hot is not None, draft.hot or 0)


def pick_row(rows, b, n):
    return list(range(n)) if rows is None else rows[b].tolist()


def target_of(rows, kind, stats, params, row_of, wide, method):
    """node -> (Law, slack)."""
    law_of = side(rows, kind, stats, *params)

    def target(node):
        if not 0 <= row_of[node] < len(rows):
            return Law(np.zeros(wide), np.zeros(wide), False, False, 0), math.inf
        law, slack = law_of(row_of[node])
        if method == "greedy" and kind == "probs" and law.valid:
            law = law._replace(p=np.eye(1, len(law.p), law.fallback)[0], greedy=True)
        return padded(law, wide), slack

    return target


def draft_of(rows, kind, stats, params, row_of, tokens, wide):
    """child -> (Draft, slack)."""
    law_of = None if rows is None else side(rows, kind, stats, *params)

    def draft(child):
        row = row_of[child]
        if rows is None or row < 0:
            return one_hot(tokens[child], wide), math.inf
        if row >= len(rows):
            return Draft(np.zeros(wide), np.zeros(wide), False, False, row), math.inf
        law, slack = law_of(row)
        law = padded(law, wide)
        hot = law.fallback if law.greedy else None
        return Draft(clean_q(law.p), law.err, law.valid or law.gathered, law.valid, row, hot, law.log_p), slack

    return draft

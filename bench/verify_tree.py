# SPDX-License-Identifier: Apache-2.0
"""Benchmark of verify_tree with each method on K merged drafts of length L, against the same walk in eager torch
(not for traversal and race).

Bytes: the target row of every visited node once. For methods that read q, also the draft row of every node at which
drafts were tested and none was accepted; kseq reads it at every visited node that has drafts. The drafter's stats are
given, the target's are not. `second_read`: the target row again where the walk stopped before a leaf; every visited
target row again for race, none for greedy. Further passes are not counted: kseq's search and the residuals after
several rejections read both rows again.

`by RULE`: the same tree with a rule, against the exact rule. All uniforms are 0, so the first child of every node is
accepted.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import switched, triton
from bench.peers import tree as eager
from specdec_kernels.registry import TREE_METHODS

CLOSENESS = 1.1  # as in bench.verify_chain
K, L = 4, 4
RULES = [("chow", 0.9), ("opt", 5.0), ("token_v3", 0.5), ("lossy", 0.3)]


def cases(device: str) -> Cases:
    for method in TREE_METHODS:
        for B in (1, 8) if device == "cpu" else (1, 8, 64):
            yield Case(
                f"B={B} V=151936 bf16 K={K} L={L} {method}", functools.partial(_step, B, 151936, "bf16", method, device)
            )
    by_triton = device == "cuda" and sk.backends.chosen() == "triton"  # Triton has no rules on trees
    for rule, alpha in () if by_triton else RULES:
        for method in ("kseq", "recursive_without_replacement", "traversal"):
            yield Case(
                f"B=8 V=151936 bf16 K={K} L={L} {method} by {rule}",
                functools.partial(_by_rule, 8, 151936, "bf16", method, rule, alpha, device),
            )


def inputs(B: int, V: int, dtype: str, device: str) -> SimpleNamespace:
    """Return inputs with a tree of K drafts of length L, drawn i.i.d. from the rows of their nodes."""
    N = K * L + 1
    target = logits(B, N, V, dtype=torch.float32, device=device, seed=B)
    noise = torch.empty(B, N, V, device=device).normal_(0, CLOSENESS, generator=torch.Generator(device).manual_seed(1))
    draft, target = (target + noise).to(DTYPES[dtype]), target.to(DTYPES[dtype])
    seed, offset = torch.arange(B, device=device), torch.zeros(B, dtype=torch.int64, device=device)
    drafts, at = torch.full((B, K, L), -1, device=device), torch.zeros(B, K, dtype=torch.int64, device=device)
    for level in range(L):
        rows = draft[torch.arange(B, device=device)[:, None], at].view(B * K, V)
        slot = (torch.arange(K, device=device) * L + level).repeat(B)
        drawn = sk.sample(rows, seed=seed.repeat_interleave(K), offset=offset.repeat_interleave(K), slot=slot)
        drafts[:, :, level] = drawn.tokens.view(B, K)
        tree = sk.build_tree(drafts[:, :, : level + 1])
        at = tree.draft_nodes[:, :, level].long()
    stats = sk.row_stats(draft.view(B * N, V)).view(B, N, 4)
    return SimpleNamespace(tree=tuple(tree), target=target, draft=draft, stats=stats, seed=seed, offset=offset)


def arguments(x: SimpleNamespace, method: str) -> dict:
    """Return the keyword arguments of the public function."""
    draft = sk.Rows(x.draft, stats=x.stats) if TREE_METHODS[method].reads_draft else None
    given = {"tree": x.tree, "target": sk.Rows(x.target), "draft": draft}
    return given | {"method": method, "seed": x.seed, "offset": x.offset}


def _step(B: int, V: int, dtype: str, method: str, device: str) -> Work:
    x = inputs(B, V, dtype, device)

    def ours(x):
        return sk.verify_tree(**arguments(x, method))

    n = ours(x).num_accepted
    visited, inner, stopped = int((n + 1).sum()), int((n + 1).clamp(max=L).sum()), int((n < L).sum())
    tested = {"kseq": inner, "greedy": 0, "target_only": 0, "race": 0}.get(method, stopped)
    row = V * x.target.element_size()
    again = {"greedy": 0, "race": visited}.get(method, stopped)
    work = Work(x, ours, (visited + tested) * row, again * row, outcome=tokens_per_request)
    if method == "traversal":
        work.skipped["eager"] = "not written: it walks from the leaves"
    elif method == "race":
        work.skipped["eager"] = "not written: torch has no such noise"
    else:
        work.peers["eager"] = lambda x: eager.verify(method, x.tree, x.target, x.draft, x.stats)
    if device == "cuda":
        work.peer("ours, one block", lambda: switched.same(ours))
        work.peer("ours in triton", lambda: triton.same("verify_tree", ours, device))
    return work


def _by_rule(B: int, V: int, dtype: str, method: str, rule: str, alpha: float, device: str) -> Work:
    x = inputs(B, V, dtype, device)
    columns = K * L if method == "kseq" else K * L + 1
    x.u = torch.zeros(B, columns + 1, dtype=torch.float64, device=device)

    def exact(x, **by):
        return sk.verify_tree(x.tree, x.target, sk.Rows(x.draft, stats=x.stats), method=method, uniforms=x.u, **by)

    def ours(x):
        return exact(x, rule=rule, alpha=alpha)

    assert (ours(x).num_accepted == L).all() and (exact(x).num_accepted == L).all()
    work = Work(x, ours, B * (L + 1) * V * x.target.element_size(), outcome=tokens_per_request)
    work.peers["exact"] = exact
    if device == "cuda":
        work.peer("ours, one block", lambda: switched.same(ours))
    return work


def tokens_per_request(output: object) -> float:
    tokens = output if isinstance(output, torch.Tensor) else output.tokens
    return (tokens >= 0).sum(1).double().mean().item()

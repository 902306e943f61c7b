# SPDX-License-Identifier: Apache-2.0
"""Uniforms given by the caller, in every op that takes them."""

import math

import pytest
import torch
from support import backends, rule_cases
from support.surface import tensors

from specdec_kernels.rules import RULES

TREE_METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal")
OUTSIDE = torch.tensor([-1.0, -math.inf, -0.0, math.nan, 1.0, 1.5, math.inf], dtype=torch.float64)
NEAREST = torch.tensor([0.0] * 4 + [1 - 2.0**-53] * 3, dtype=torch.float64)


def given(B, columns):
    """Return uniforms [B, columns] outside [0, 1), and the nearest ones inside.

    With B = 49, every pair of kinds occurs in adjacent columns; with B = 7, every kind occurs in every column.
    """
    pair = torch.arange(B) * (8 if B == 7 else 1)
    i = pair[:, None] // torch.tensor([1, 7])[torch.arange(columns) % 2] % 7
    return OUTSIDE[i], NEAREST[i]


def logits(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def case(name, B):
    """Return (op, its arguments without uniforms, columns)."""
    V, Vq = 6, 9
    p, q = logits(B, 3, V), logits(B, 3, Vq)
    drafts = torch.randint(0, Vq, (B, 2), generator=torch.Generator().manual_seed(1))
    if name in ("with", "without"):
        return "sample", {"logits": p[:, 0], "k": 3, "replacement": name == "with"}, 3
    if name in ("token", "block"):
        return "verify_chain", {"target_logits": p, "draft_tokens": drafts, "draft_logits": q[:, :2], "method": name}, 3
    if name in RULES:
        return (
            "verify_chain",
            {"target_logits": p, "draft_tokens": drafts, "draft_logits": q[:, :2], "rule": name, "alpha": 0.5},
            3,
        )
    tree = torch.tensor([[-1, 0, 0]]).expand(B, 3), torch.cat([drafts[:, :1] * 0, drafts], 1)
    return "verify_tree", {"tree": tree, "target_logits": p, "draft_logits": q, "method": name}, 4


@pytest.mark.parametrize("name", ["with", "without", "token", "block", "ensemble", "synthetic", *TREE_METHODS])
@pytest.mark.slow_in_triton
def test_uniforms_outside_count_as_the_nearer_end(backend, name):
    """Uniforms outside [0, 1) give the same results as the nearest inside, and NaN as 0. All tokens lie in the
    vocabulary."""
    B = 7 if backend in rule_cases.SLOW else 49
    op, args, columns = case(name, B)
    outside, nearest = given(B, columns)
    got, want = (backends.run(op, backend, **args, uniforms=u) for u in (outside, nearest))
    for x, y in zip(tensors(got), tensors(want)):
        assert torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))
    assert got.tokens.max() < 6 and (got.tokens[:, 0] >= 0).all()


def test_accept_tests_uniforms_outside_too(backend):
    p, q = torch.tensor([0.0, 0.3, 1.0])[:, None].expand(3, 7), torch.tensor([0.2, 1.0, 1.0])[:, None].expand(3, 7)
    got = backends.run("accept", backend, p, q, OUTSIDE.expand(3, 7))
    assert got.tolist() == [[False] * 7, [True] * 4 + [False] * 3, [True] * 7]


@pytest.mark.slow_in_triton
def test_no_id_of_the_draft_alone_is_emitted(backend):
    """The target has one id and the draft two, so p = 0 for the draft's second id. Without clamping, u = -1 would
    accept it, because u * q < 0."""
    p, q, u = torch.zeros(1, 2, 1), torch.zeros(1, 1, 2), torch.tensor([[-1.0, 0.0]], dtype=torch.float64)
    out = backends.run("verify_chain", backend, p, torch.tensor([[1]]), q, uniforms=u)
    assert out.tokens.tolist() == [[0, -1]] and out.num_accepted.tolist() == [0]
    tree = torch.tensor([[-1, 0]]), torch.tensor([[-1, 1]])
    for method in TREE_METHODS:
        out = backends.run(
            "verify_tree",
            backend,
            tree,
            p,
            q.expand(1, 2, 2),
            method=method,
            max_depth=1,
            uniforms=torch.full((1, 3), -1.0).double(),
        )
        assert out.tokens.tolist() == [[0, -1]] and out.num_accepted.tolist() == [0]

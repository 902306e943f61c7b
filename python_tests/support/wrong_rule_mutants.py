# SPDX-License-Identifier: Apache-2.0
"""Wrong rules of docs/wrong_rules.md as errors in the sources.

The penalties of the first row are in view_mutants, and the block without a cap is in rule_mutants.
"""

import torch
from support import backends

CHAIN, TARGET_ONLY = "ops/verify_chain/test_draft.h", "ops/verify_tree/target_only.h"
TRITON_ROWS, TRITON_CHAIN, TRITON_TREE = "core/rows.py", "chain/draft_test.py", "tree/descend.py"


def chain(backend, p, d, q, u):
    """Verify one draft, and return the emitted tokens."""
    target, draft = (x and torch.tensor(x).log().expand(1, n, -1) for x, n in ((p, 2), (q, 1)))
    u = torch.tensor([u], dtype=torch.float64)
    return backends.run("verify_chain", backend, target, torch.tensor([[d]]), draft, uniforms=u).tokens.tolist()


def children(backend, tokens, p, u, v, q=None, method="target_only"):
    """Verify children of the root, and return the emitted tokens."""
    tree = (torch.tensor([[-1, *[0] * len(tokens)]], dtype=torch.int32), torch.tensor([[-1, *tokens]]))
    rows = (x and torch.tensor(x).log().expand(1, len(tokens) + 1, -1) for x in (p, q))
    u = torch.tensor([[*u, v]], dtype=torch.float64)
    out = backends.run("verify_tree", backend, tree, *rows, method=method, uniforms=u)
    return [x for x in out.tokens[0].tolist() if x >= 0]


def rejected_one_hot_draft(backend):
    assert chain(backend, [0.5, 0.3, 0.2], 0, None, [0.9, 0.25]) == [[1, -1]]  # residual (0, .6, .4) at .25


def forbidden_draft(backend):
    assert chain(backend, [0.5, 0.5, 0.0], 2, [0.4, 0.1, 0.5], [0.0, 0.4]) == [[1, -1]]  # residual (.2, .8, 0) at .4


def impossible_draft(backend):
    assert chain(backend, [0.5, 0.5, 0.0], 2, [0.3, 0.3, 0.4], [0.0, 0.0]) == [[0, -1]]


def impossible_child(backend):
    assert children(backend, [2], [0.5, 0.5, 0.0], [0.0, 0.0], 0.0) == [0]


def rejected_children(backend):
    """Check that all of 34 rejected children are removed from the residual, also the last two."""
    assert children(backend, [*range(34)], [1 / 40] * 40, [0.9] * 35, 0.0) == [34]


def second_sibling(backend):
    """Check that a second sibling is tested against the residual, in which nothing is left of token 0."""
    assert children(backend, [0, 0], [0.2, 0.8], [0.5, 0.5, 0.1], 0.5, [0.8, 0.2], "recursive") == [1]


CHECKS = (
    rejected_one_hot_draft,
    forbidden_draft,
    impossible_draft,
    impossible_child,
    rejected_children,
    second_sibling,
)
NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "a coin of 0 accepts an impossible child": (
        ["avx2"],
        [(TARGET_ONLY, "test_uniform * acc < seen", "test_uniform * acc <= seen")],
        impossible_child,
    ),
    "32 rejected children are removed": (
        ["avx2"],
        [(TARGET_ONLY, "walk.push(subtraction);", "if (walk.rest.n < 32) walk.push(subtraction);")],
        rejected_children,
    ),
    "a forbidden draft ends the chain": (
        ["avx2"],
        [(CHAIN, "if (p_d != p_d) return r;", "if (!(p_d > 0)) return r;")],
        forbidden_draft,
    ),
}
TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "a coin of 0 accepts an impossible draft": (
        TRITON_ROWS,
        "(u * tl.where(q < 1, q, 1.0) < p)",
        "(u * tl.where(q < 1, q, 1.0) <= p)",
        impossible_draft,
    ),
    "a coin of 0 accepts an impossible child": (TRITON_TREE, "(toss.u < seen)", "(toss.u <= seen)", impossible_child),
    "32 rejected children are removed": (
        TRITON_TREE,
        "rejected = testing & ~accepted & (seen == seen)",
        "rejected = testing & ~accepted & (seen == seen) & (rest.n < 32)",
        rejected_children,
    ),
    "a rejected one-hot draft is drawn again": (
        TRITON_CHAIN,
        "removed = tl.max((rejected & q_valid)",
        "removed = tl.max((rejected & q_valid & (q.hot < 0))",
        rejected_one_hot_draft,
    ),
    "a forbidden draft ends the chain": (
        TRITON_CHAIN,
        "removed = tl.max((rejected & q_valid)",
        "removed = tl.max((rejected & q_valid & (p_d > 0))",
        forbidden_draft,
    ),
    "siblings tested against one p": (
        TRITON_TREE,
        "r /= rest.total",
        "r, _ = prob(sides.target, residual.b, residual.p, token, testing)",
        second_sibling,
    ),
}

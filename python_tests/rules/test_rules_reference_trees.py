# SPDX-License-Identifier: Apache-2.0
"""Rules on trees: at every node with children, the rule's distribution pi replaces p. The rule "thresholds" applies to
target_only."""

import numpy as np
import pytest
import torch
from support.rule_laws import ALPHAS, LAWS, emitted
from support.tree_laws import EXACT, TELLING, constant, random_rows, with_zeros

from specdec_kernels import testing
from specdec_kernels.reference import banded
from specdec_kernels.reference.chain_law import chain_law
from specdec_kernels.reference.tree_law import distinct_trees, iid_trees, mixed, plain_tree, tree_law
from specdec_kernels.rows import Rows

METHODS = ("kseq", "recursive", "recursive_without_replacement", "traversal")


def distance(law, row, length):
    full, want = testing.complete_law(law, row, length), testing.enumerate_law(row, length)
    return max(abs(full.get(t, 0.0) - want.get(t, 0.0)) for t in {*full, *want})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rule", LAWS[1:])
def test_every_node_with_children_emits_pi(method, rule):
    """Two drafts of two tokens: every emitted token follows pi, except the token after a leaf, which follows p."""
    p, q = random_rows(31, 3), with_zeros(random_rows(32, 3), 1)
    law = mixed(iid_trees(q, 2, 2), p, q, method, rule, ALPHAS[rule])
    assert distance(law, lambda t: emitted(rule, p(t), q(t), ALPHAS[rule]) if len(t) < 2 else p(t), 3) < EXACT


@pytest.mark.parametrize("method", ["recursive_without_replacement", "traversal"])
@pytest.mark.parametrize("rule", ["diff", "token_v3", "lossy"])
def test_children_without_replacement(method, rule):
    p, q = random_rows(33, 3), random_rows(34, 3)
    law = mixed(distinct_trees(q, [3, 1]), p, q, method, rule, ALPHAS[rule])
    assert distance(law, lambda t: emitted(rule, p(t), q(t), ALPHAS[rule]) if len(t) < 2 else p(t), 3) < EXACT


def test_a_chain_is_a_tree():
    """A tree with one draft is a chain: recursive rejection equals the token method, and traversal equals block
    verification, under the exact rule and the cascades."""
    rng = torch.Generator().manual_seed(5)
    B, G, V = 60, 3, 6
    p = 2 * torch.randn(B, G + 1, V, generator=rng)
    q, drafts = p + torch.randn(B, G + 1, V, generator=rng), torch.randint(V, (B, G), generator=rng)
    u = torch.rand(B, G + 1, generator=rng, dtype=torch.float64)
    tree = (torch.tensor([-1, 0, 1, 2]), torch.cat([torch.full((B, 1), -1), drafts], 1))
    codes = torch.arange(B) % 10
    target = Rows(p, temperature=torch.tensor([1.0, 0.8, 0.0]).repeat(20))
    more = dict(rule=codes, alpha=torch.tensor([0.3]).expand(B))
    for method, of_tree in (("token", "recursive_without_replacement"), ("block", "traversal")):
        want = banded.verify_chain(target, drafts, q[:, :G], method=method, uniforms=u, **more)
        out = banded.verify_tree(tree, target, q, method=of_tree, uniforms=torch.cat([u[:, :1], u], 1), **more)
        assert want.margin.min() > 1e-3 and torch.equal(out.tokens, want.tokens), method
        assert out.logprobs.numpy() == pytest.approx(want.logprobs.numpy(), abs=1e-12)


def test_thresholds():
    """A root with p = (.2, .4, .4) and the children 2 and 0, computed by hand. Otherwise token 1 is emitted, the only
    one left."""
    p = constant(TELLING[0])
    tree = plain_tree([-1, 0, 0], [-1, 2, 0])
    want = {  # (threshold_single, threshold_acc): the probabilities of the first and the second child
        (1.0, 1.0): (0.4, 0.2),
        (1.0, 0.8): (0.5, 0.25),
        (1.0, 0.5): (0.8, 0.2),
        (0.3, 1.0): (1.0, 0.0),
        (0.4, 0.5): (1.0, 0.0),
    }
    for alpha, (first, second) in want.items():
        law = tree_law(tree, p, None, "target_only", rule="thresholds", alpha=alpha)
        got = [sum(m for t, m in law.items() if len(t) == 2 and t[0] == x) for x in (2, 0)]
        assert got == pytest.approx([first, second], abs=EXACT)
        assert law.get((1,), 0.0) == pytest.approx(1 - first - second, abs=EXACT)
    # 0 comes first and is below threshold_single: it is accepted with its share only
    order = plain_tree([-1, 0, 0], [-1, 0, 2])
    law = tree_law(order, p, None, "target_only", rule="thresholds", alpha=(0.3, 0.8))
    assert sum(m for t, m in law.items() if t[0] == 0) == pytest.approx(0.25, abs=EXACT)
    assert sum(m for t, m in law.items() if t[0] == 2) == pytest.approx(0.75, abs=EXACT)


def test_thresholds_of_a_chain():
    """verify_chain with thresholds equals a tree with one child per node. In the tree, a child's uniform is in its
    parent's column."""
    rng = torch.Generator().manual_seed(6)
    p, drafts = 2 * torch.randn(80, 4, 5, generator=rng), torch.randint(5, (80, 3), generator=rng)
    u = torch.rand(80, 4, generator=rng, dtype=torch.float64)
    more = dict(rule="thresholds", alpha=(0.5, 0.6))
    want = banded.verify_chain(p, drafts, uniforms=u, **more)
    tree = (torch.tensor([-1, 0, 1, 2]), torch.cat([torch.full((80, 1), -1), drafts], 1))
    out = banded.verify_tree(tree, p, method="target_only", uniforms=torch.cat([u[:, :3], u[:, 2:]], 1), **more)
    assert len(set(want.num_accepted.tolist())) == 4 and torch.equal(out.tokens, want.tokens)


def test_confidences_are_unscaled():
    """At T = .5 and T = 2, chow with alpha .55 keeps q, because max q1 = .5 is read at T = 1. The draft from q is then
    accepted."""
    p, q = (torch.from_numpy(np.log(x)).float() for x in TELLING)
    tree = plain_tree([-1, 0], [-1, 0])
    for temperature in (0.5, 2.0):
        for alpha, accepted in ((0.55, 1), (0.45, 0)):
            out = banded.verify_tree(
                tree,
                Rows(p.expand(1, 2, 3), temperature=temperature),
                Rows(q.expand(1, 2, 3), temperature=temperature),
                method="recursive",
                rule="chow",
                alpha=alpha,
                uniforms=torch.tensor([[0.0, 0.9999, 0.5]], dtype=torch.float64),
            )
            assert out.num_accepted.item() == accepted


GIVEN = {"neither": (), "p1": ("p1",), "q1": ("q1",), "both": ("p1", "q1")}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("drafts", ["drawn", "one-hot"])
def test_each_unscaled_row_has_its_default(drafts, given):
    """Where p1 or q1 is not given, p or q is read in its place, as for a chain. A one-hot draft is its own q1."""
    p, q = random_rows(35, 3), random_rows(36, 3)
    rows = {"p1": random_rows(37, 3), "q1": random_rows(38, 3)}
    args = {name: rows[name] for name in GIVEN[given]}
    one_hot = drafts == "one-hot"
    trees = [(plain_tree([-1, 0, 1], [-1, 1, 0]), 1.0)] if one_hot else list(iid_trees(q, 1, 2))
    tree_q, chain_q = (None, lambda t: (1, 0)[len(t)]) if one_hot else (q, q)
    changes = False
    for rule in ("chow", "diff", "opt", "token_v2"):
        law = mixed(trees, p, tree_q, "recursive", rule, 0.1, **args)
        want = chain_law(p, chain_q, 2, rule=rule, alpha=0.1, **args | ({"q1": None} if one_hot else {}))
        assert all(abs(law.get(t, 0.0) - want.get(t, 0.0)) < EXACT for t in {*law, *want}), rule
        scaled = mixed(trees, p, tree_q, "recursive", rule, 0.1)
        changes |= any(abs(law.get(t, 0.0) - scaled.get(t, 0.0)) > 0.01 for t in {*law, *scaled})
    assert changes == ("p1" in args or ("q1" in args and not one_hot)), "what is given decides nothing"


def test_undefined_combinations_are_refused():
    tree = plain_tree([-1, 0], [-1, 0])
    z = torch.zeros(1, 2, 3)
    for method, rule in (
        ("target_only", "chow"),
        ("greedy", "ensemble"),
        ("recursive", "typical"),
        ("kseq", "thresholds"),
        ("greedy", "thresholds"),
    ):
        with pytest.raises(ValueError, match=f"verify_tree: rule {rule} is not defined for method '{method}'"):
            banded.verify_tree(tree, z, z, method=method, rule=rule, alpha=0.5)

# SPDX-License-Identifier: Apache-2.0
"""Exact joint distributions of the tree rules, and combinations of draft and rule that must not be lossless."""

import itertools
import math

import numpy as np
import pytest
import torch
from support import tree_laws
from support.tree_laws import ALL, EXACT, GOLDEN, MERGED, TELLING, constant, error, first_token, random_rows, rows_of

from specdec_kernels import reference
from specdec_kernels.reference import chain_law
from specdec_kernels.reference import tree_law as one_tree_law
from specdec_kernels.reference.tree_law import (
    distinct_trees,
    expected_length,
    iid_drafts,
    iid_trees,
    mixed,
    plain_tree,
    separate_trees,
    walks,
)

# V, K, L: K drafts that diverge, a deep tree, a wide one, drafts such as A B A, a chain
SIZES = [(3, 2, 2), (2, 3, 3), (4, 3, 1), (3, 3, 1), (3, 1, 2)]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("V, K, L", SIZES)
def test_independent_drafts_merged(method, V, K, L):
    p, q = rows_of("random", V)
    assert error(mixed(iid_trees(q, K, L), p, q, method), p, L + 1) < EXACT


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("kind", ["zeros", "equal"])
def test_forbidden_tokens_and_equal_laws(method, kind):
    p, q = rows_of(kind, 3)
    law = mixed(iid_trees(q, 2, 2), p, q, method)
    assert error(law, p, 3) < EXACT
    if kind == "equal" and method != "target_only":
        assert expected_length(law) == pytest.approx(3, abs=EXACT)  # the first draft is accepted as a whole


@pytest.mark.thorough
@pytest.mark.parametrize("method", ALL)
@pytest.mark.slow
def test_independent_children_kept_apart(method):
    """Equal siblings are separate nodes. Methods test them in node order, or skip duplicates if siblings must be
    distinct."""
    p, q = rows_of("random", 3)
    assert error(mixed(separate_trees(q, 2, 2), p, q, method), p, 3) < EXACT
    assert error(mixed(separate_trees(q, 3, 1), p, q, method), p, 2) < EXACT


@pytest.mark.parametrize("method", MERGED)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_children_without_replacement(method, kind):
    p, q = rows_of(kind, 3)
    assert error(mixed(distinct_trees(q, [2, 2]), p, q, method), p, 3) < EXACT
    assert error(mixed(distinct_trees(q, [3, 1]), p, q, method), p, 3) < EXACT


@pytest.mark.parametrize("method", ["recursive", "recursive_without_replacement", "target_only", "traversal"])
def test_one_hot_drafts(method):
    """A tree from any source is lossless if every node counts as a one-hot draft, without q."""
    p = random_rows(1, 4)
    tree = plain_tree([-1, 0, 0, 1, 1, 2], [-1, 0, 2, 3, 1, 2])
    assert error(one_tree_law(tree, p, None, method), p, 3) < EXACT


def test_a_looked_up_branch_beside_drawn_ones():
    """Draft 0 is looked up (one-hot nodes) and two more are drawn. They are merged in order of first appearance and
    verified without replacement, each node against the distribution that it came from. If they were verified as drafts,
    a merged node would need two distributions: this is biased, as the last line shows."""
    p, q = rows_of("random", 3)

    def law(method):
        out = {}
        for drafts, probability in iid_drafts(q, 2, 2):
            tree = reference.build_tree(torch.cat([torch.tensor([[[1, 0]]]), drafts], 1))
            for tokens, mass in one_tree_law(tree, p, q, method, one_hot_nodes=tree.draft_nodes[0, 0].tolist()).items():
                out[tokens] = out.get(tokens, 0.0) + probability * mass
        return out

    for method in MERGED:
        assert error(law(method), p, 3) < EXACT
    assert error(law("recursive"), p, 3) > 1e-3


def test_target_only_is_lossless_on_top_k_trees():
    p, q = rows_of("random", 4)
    top = [np.argsort(-q(()))[:2], *[np.argsort(-q((int(x),)))[:2] for x in np.argsort(-q(()))[:2]]]
    tree = plain_tree([-1, 0, 0, 1, 1, 2, 2], [-1, *np.concatenate(top).tolist()])
    law = one_tree_law(tree, p, q, "target_only")
    assert error(law, p, 3) < EXACT
    paths = [(a,) for a in top[0]] + [
        (a, b) for i, a in enumerate(top[0]) for b in top[1 + i]
    ]  # a node is accepted with probability p
    accepted = sum(math.prod(p(t[:i])[t[i]] for i in range(len(t))) for t in paths)
    assert expected_length(law) == pytest.approx(1 + accepted, abs=EXACT)


def test_greedy_is_greedy_decoding():
    p, q = rows_of("random", 4)
    best = []
    for _ in range(3):
        best.append(int(np.argmax(p(tuple(best)))))
    other = (best[0] + 1) % 4
    tree = plain_tree([-1, 0, 0, 2, 2, 2], [-1, other, best[0], other, best[1], best[1]])
    assert one_tree_law(tree, p, q, "greedy") == {tuple(best): 1.0}
    for tree, _ in itertools.islice(distinct_trees(q, [2, 2]), 40):
        (tokens,) = one_tree_law(tree, p, q, "greedy")
        assert list(tokens) == best[: len(tokens)]


def test_recursive_on_a_chain_is_token_level_verification():
    p, q = rows_of("random", 3)
    want = chain_law(p, q, 2)
    for method in ("kseq", "recursive", "recursive_without_replacement"):
        got = mixed(iid_trees(q, 1, 2), p, q, method)
        assert {**got, **want}.keys() == want.keys() and all(abs(got.get(t, 0) - m) < EXACT for t, m in want.items())


def test_no_uniform_is_asked_twice():
    """Each decision of a walk reads its own column of the uniforms, so decisions are independent. target_only reads one
    column per parent."""
    p, q = rows_of("random", 3)
    for method in ("kseq", "recursive", "recursive_without_replacement", "traversal"):
        for tree, _ in itertools.islice(iid_trees(q, 3, 2), 0, 729, 41):
            for step, _ in walks(tree, p, q, method):
                columns = step.chance.columns
                assert len(set(columns)) == len(columns), f"{method}: columns {columns}"


# ---- what must not be lossless --------------------------------------------------------------------------------------


def test_merged_drafts_verified_as_independent_ones_are_biased():
    """Two drafts: 0 is drawn and rejected with probability .5 * .6 = .3, and drawn again with .5. If the drafts are
    merged, the second test is lost. The token then comes from the residual (0, 1, 5) / 6, so token 1 gets 1/6 instead
    of 0."""
    p, q = map(constant, TELLING)
    law = mixed(tree_laws.without_drafts(iid_trees(q, 2, 1)), p, q, "recursive")
    assert first_token(law, 3) == pytest.approx([0.2, 0.425, 0.375], abs=EXACT)
    assert error(mixed(tree_laws.without_drafts(iid_trees(q, 3, 1)), p, q, "kseq"), p, 2) > 1e-3


def test_distinct_drafts_verified_as_independent_ones_are_biased():
    """Two distinct drafts: a rejected 0 (.3) is followed by 1 (.7), which is accepted with 10/21, or by 2. Token 1 gets
    .35 + .1."""
    p, q = map(constant, TELLING)
    assert first_token(mixed(distinct_trees(q, [2]), p, q, "recursive"), 3) == pytest.approx(
        [0.2, 0.45, 0.35], abs=EXACT
    )
    assert error(mixed(distinct_trees(q, [2]), p, q, "kseq"), p, 2) > 1e-3


def test_a_top_k_tree_verified_by_q_is_biased():
    """The tree always has the children 0 and 1. 0 is accepted with .4, then 1 with 10/21. Without replacement, 1 is
    tested against q = .7 and accepted with 5/21."""
    p, q = map(constant, TELLING)
    tree = plain_tree([-1, 0, 0], [-1, 0, 1])
    assert first_token(one_tree_law(tree, p, q, "recursive"), 3) == pytest.approx(
        [0.4, 0.6 * 10 / 21, 0.6 * 11 / 21], abs=EXACT
    )
    got = first_token(one_tree_law(tree, p, q, "recursive_without_replacement"), 3)
    assert got == pytest.approx([0.4, 0.6 * 5 / 21, 0.6 * 16 / 21], abs=EXACT)
    for method in ("kseq", "traversal"):
        assert error(one_tree_law(tree, p, q, method), p, 2) > 0.05


def test_merged_order_is_biased_for_recursive_rejection():
    """Only the drafts 0, 1, 0 show the bias. In draft order, 1 is accepted with 10/21. After two zeros it never is, so
    token 1 loses .5^2 * .35 * .6 * 10/21 = .025."""
    p, q = map(constant, TELLING)
    law = mixed(tree_laws.grouped_trees(q, 3, 1), p, q, "recursive")
    assert first_token(law, 3) == pytest.approx([0.2, 0.375, 0.425], abs=EXACT)


@pytest.mark.slow
def test_merged_order_is_biased_for_kseq():
    """On the golden pair with k = 3, a draft x is accepted with a_x = min(1, p / (rho q)). If the drafts A, B, A become
    A, A, B, token B loses q_A^2 q_B (1 - a_A) a_A a_B."""
    P, Q = GOLDEN
    p, q = map(constant, GOLDEN)
    a = np.minimum(1, P / (1.792593028269 * Q))
    want = P.copy()
    for x, y in itertools.permutations(range(3), 2):
        lost = Q[x] ** 2 * Q[y] * a[y] * a[x] * (1 - a[x])
        want += lost * (np.eye(3)[x] - np.eye(3)[y])
    got = first_token(mixed(tree_laws.grouped_trees(q, 3, 1), p, q, "kseq"), 3)
    assert got == pytest.approx(want, abs=1e-11)  # rho is given to 12 digits
    assert np.abs(got - P).max() == pytest.approx(0.0153386, abs=1e-6)
    assert error(mixed(tree_laws.grouped_trees(q, 3, 2), p, q, "kseq"), p, 3) > 1e-3


def test_the_golden_pair_alone_would_not_tell():
    """The reason for the pair TELLING: on the golden pair, recursive rejection looks lossless with all three wrong ways
    of drafting."""
    p, q = map(constant, GOLDEN)
    assert error(mixed(tree_laws.without_drafts(iid_trees(q, 2, 1)), p, q, "recursive"), p, 2) < EXACT
    assert error(mixed(distinct_trees(q, [2]), p, q, "recursive"), p, 2) < EXACT
    assert error(mixed(tree_laws.grouped_trees(q, 3, 1), p, q, "recursive"), p, 2) < EXACT

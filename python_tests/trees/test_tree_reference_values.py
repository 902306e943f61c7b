# SPDX-License-Identifier: Apache-2.0
"""Golden numbers and bounds of K-SEQ, recursive rejection, optimal transport and traversal verification."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.tree_laws import EXACT, GOLDEN, constant, random_rows, rows_of

from specdec_kernels import reference, theory
from specdec_kernels.reference import tree_law as one_tree_law
from specdec_kernels.reference.tree_law import distinct_trees, expected_length, iid_trees, mixed, plain_tree
from specdec_kernels.rows import Rows


def tensor(*rows):
    return torch.tensor(np.array(rows), dtype=torch.float64)


def test_kseq_rho_golden():
    p, q = (tensor(x, x, x) for x in GOLDEN)
    out = reference.kseq_rho(Rows(p, kind="probs"), Rows(q, kind="probs"), torch.tensor([1, 2, 3]))
    assert out.rho.tolist() == pytest.approx([1.0, 1.456776436283, 1.792593028269], abs=6e-13)
    assert out.rho[1].item() == pytest.approx((1.8 + math.sqrt(1.24)) / 2, abs=4e-15)
    assert out.beta.tolist() == pytest.approx([0.7, 0.543223563717, 0.478925552044], abs=6e-13)
    assert out.p_acc.tolist() == pytest.approx([0.7, 0.791355287257, 0.858518605654], abs=6e-13)
    from_logits = reference.kseq_rho((p.log() + 1.5).float(), (q.log() - 3).float(), torch.tensor([1, 2, 3]))
    assert from_logits.rho.tolist() == pytest.approx(out.rho.tolist(), abs=1e-5)  # float32 logits


def test_kseq_rho_degenerate_pairs():
    p, q = tensor(GOLDEN[0]), tensor(GOLDEN[1])
    for k in (1, 2, 8, 64):
        assert [x.item() for x in reference.kseq_rho(Rows(p, kind="probs"), Rows(p, kind="probs"), k)] == [1, 1, 1]
        assert [
            x.item()
            for x in reference.kseq_rho(Rows(tensor([1.0, 0]), kind="probs"), Rows(tensor([0, 1.0]), kind="probs"), k)
        ] == [k, 0, 0]
    bad = reference.kseq_rho(Rows(tensor([math.nan, 1.0]), kind="probs"), Rows(tensor([0.5, 0.5]), kind="probs"), 4)
    assert bad.rho.item() == 4 and bad.beta.isnan() and bad.p_acc.isnan()
    # a narrower draft counts as padded with zeros
    narrow = reference.kseq_rho(Rows(p, kind="probs"), Rows(tensor([0.4, 0.6]), kind="probs"), 2)
    assert narrow == reference.kseq_rho(Rows(p, kind="probs"), Rows(tensor([0.4, 0.6, 0.0]), kind="probs"), 2)
    with pytest.raises(ValueError, match="kseq_rho: k must be >= 1, got 0"):
        reference.kseq_rho(Rows(p, kind="probs"), Rows(q, kind="probs"), 0)
    with pytest.raises(ValueError, match="kseq_rho: p.kind must be 'logits' or 'probs', got 'x'"):
        reference.kseq_rho(Rows(p, kind="x"), Rows(q, kind="x"), 2)


def test_kseq_rho_is_the_smallest_valid_rho():
    """f(rho) <= 0, so the residual has no negative entry. Slightly below rho, f is positive. p_acc lies between
    kseq_guarantee(k) times the optimum of all lossless methods and the optimum."""
    rng = np.random.default_rng(5)
    below = 0
    for _ in range(400):
        V, k = int(rng.integers(2, 30)), int(rng.integers(1, 65))
        p, q = rng.dirichlet(np.full(V, rng.choice([0.05, 0.5, 5])), 2) + 1e-12
        p, q = p / p.sum(), q / q.sum()
        rho, beta, p_acc = (
            x.item() for x in reference.kseq_rho(Rows(tensor(p), kind="probs"), Rows(tensor(q), kind="probs"), k)
        )

        def f(r):
            b = np.minimum(q, p / r).sum()
            return 1 - (1 - b) ** k - r * b

        assert 1 <= rho <= k and f(rho) <= 1e-14 * k
        assert beta == pytest.approx(np.minimum(q, p / rho).sum(), abs=1e-15)
        if rho > 1 + 1e-6:
            assert f(rho - 1e-6) > 0 or abs(f(rho - 1e-6)) < 1e-14 * k
            below += f(rho - 1e-6) > 0
        best = theory.optimal_acceptance(tensor(p), tensor(q), k).item()
        assert theory.kseq_guarantee(k) * best - 1e-12 <= p_acc <= best + 1e-12
    assert below > 200  # the lower bound was tested, not skipped


def test_one_step_acceptance_golden():
    p, q = map(constant, GOLDEN)
    for k, want in ((2, 0.76), (3, 0.808)):
        assert expected_length(mixed(iid_trees(q, k, 1), p, q, "recursive")) == pytest.approx(1 + want, abs=EXACT)
    for k, want in ((2, 0.808571428571), (3, 1.0)):
        law = mixed(distinct_trees(q, [k]), p, q, "recursive_without_replacement")
        assert expected_length(law) == pytest.approx(1 + want, abs=6e-13)
    for k, want in ((1, 0.7), (2, 0.791355287257), (3, 0.858518605654)):
        assert expected_length(mixed(iid_trees(q, k, 1), p, q, "kseq")) == pytest.approx(1 + want, abs=6e-13)


@pytest.mark.parametrize("method", ["kseq", "recursive", "recursive_without_replacement", "target_only"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_closed_forms_of_one_step(method, k):
    p, q = rows_of("random", 4)
    trees = distinct_trees(q, [k]) if method == "recursive_without_replacement" else iid_trees(q, k, 1)
    got = theory.multi_draft_acceptance(tensor(p(())), tensor(q(())), k, method).item()
    assert got == pytest.approx(expected_length(mixed(trees, p, q, method)) - 1, abs=EXACT)


@pytest.mark.slow
def test_drawn_estimate_of_distinct_drafts():
    """An estimate from random draws lies within five standard errors of the enumeration. The acceptance of a draw lies
    in [0, 1], so its standard deviation is at most 1/2."""
    p, q = (
        tensor(*(rows_of("random", 6)[0]((i,)) for i in range(4))),
        tensor(*(rows_of("random", 6)[1]((i,)) for i in range(4))),
    )
    for k in (1, 2, 3):
        exact = theory.multi_draft_acceptance(p, q, k, "recursive_without_replacement")
        drawn = theory.multi_draft_acceptance(p, q, k, "recursive_without_replacement", draws=4000)
        assert (drawn - exact).abs().max() < 5 * 0.5 / math.sqrt(4000), (k, exact, drawn)
        assert 0.05 < exact.min() and exact.min() < 0.9


def test_optimal_acceptance_is_the_minimum_cut():
    """The optimum is 1 + min over all sets H of p(H) - Pr[all drafts in H], found by brute force. The same cut bounds
    traversal without replacement."""
    rng = np.random.default_rng(6)
    pairs = [GOLDEN, *[rng.dirichlet(np.full(5, 0.5), 2) for _ in range(20)]]
    for p, q in pairs:
        subsets = [np.array(h) for h in itertools.product([0, 1], repeat=len(p))]
        for k in (1, 2, 3):
            want = 1 + min(p @ h - (q @ h) ** k for h in subsets)
            assert theory.optimal_acceptance(tensor(p), tensor(q), k).item() == pytest.approx(want, abs=EXACT)
    got = [theory.optimal_acceptance(*map(tensor, GOLDEN), k).item() for k in (1, 2, 3)]
    assert got == pytest.approx([0.7, 0.86, 0.988], abs=EXACT)
    p, q = GOLDEN
    pair = {(x, y): q[x] * q[y] / (1 - q[x]) for x, y in itertools.permutations(range(3), 2)}
    cut = 1 + min(
        p @ np.array(h) - sum(m for (x, y), m in pair.items() if h[x] and h[y])
        for h in itertools.product([0, 1], repeat=3)
    )
    assert cut == pytest.approx(0.985714285714, abs=6e-13)
    assert expected_length(mixed(distinct_trees(constant(q), [2]), constant(p), constant(q), "traversal")) - 1 <= cut


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_no_method_beats_the_optimum_of_its_drafts(k):
    p, q = np.random.default_rng(7).dirichlet(np.full(8, 0.5), (2, 12))
    best = theory.optimal_acceptance(tensor(*p), tensor(*q), k)
    kseq, recursive, target = (
        theory.multi_draft_acceptance(tensor(*p), tensor(*q), k, m) for m in ("kseq", "recursive", "target_only")
    )
    assert (kseq <= best + EXACT).all() and (recursive <= kseq + EXACT).all() and (target <= recursive + EXACT).all()
    assert (kseq >= theory.kseq_guarantee(k) * best - EXACT).all()


def test_single_path_of_traversal_is_block_verification():
    """p = (1/3, 2/3), q = (2/3, 1/3), two draft tokens: traversal accepts 11/9 on average, as block verification does;
    recursive rejection accepts 10/9 (Sun et al. 2024)."""
    p, q = constant(np.array([1, 2]) / 3), constant(np.array([2, 1]) / 3)
    chains = [plain_tree([-1, 0, 1], [-1, *d]) for d in itertools.product([0, 1], repeat=2)]
    bonus = {(0,): 1 / 3, (1,): 2 / 3}
    want = {  # by hand: r = (.5, .25), (.5, 1 by s_1 = 0), (1, .5), (1, 1)
        (0, 0): {(1,): 0.75, **{(0, 0) + t: 0.25 * m for t, m in bonus.items()}},
        (0, 1): {(0, 1) + t: m for t, m in bonus.items()},
        (1, 0): {(1, 1): 0.5, **{(1, 0) + t: 0.5 * m for t, m in bonus.items()}},
        (1, 1): {(1, 1) + t: m for t, m in bonus.items()},
    }
    for tree in chains:
        law = one_tree_law(tree, p, q, "traversal")
        assert law == pytest.approx(want[tuple(tree.tokens[0, 1:].tolist())], abs=EXACT)
    assert theory.expected_tree_tokens(p, q, 1, 2, "traversal") == pytest.approx(1 + 11 / 9, abs=EXACT)
    assert theory.expected_tree_tokens(p, q, 1, 2, "recursive") == pytest.approx(1 + 10 / 9, abs=EXACT)


def test_traversal_accepts_more_than_recursive_rejection_on_distinct_children():
    for seed in range(3):
        p, q = random_rows(seed, 3), random_rows(seed + 10, 3)
        lengths = [
            theory.expected_tree_tokens(p, q, 2, 2, m, "distinct")
            for m in ("traversal", "recursive_without_replacement")
        ]
        assert lengths[0] > lengths[1] - EXACT


def test_errors():
    p, q = tensor(GOLDEN[0]), tensor(GOLDEN[1])
    with pytest.raises(ValueError, match="multi_draft_acceptance: method must be one of"):
        theory.multi_draft_acceptance(p, q, 2, "x")
    with pytest.raises(ValueError, match=r"needs V\^\(k-1\) <= 10\^6 or draws, got V=3, k=20"):
        theory.multi_draft_acceptance(p, q, 20, "recursive_without_replacement")
    with pytest.raises(ValueError, match="draws must be an integer >= 1 or None, got 0"):
        theory.multi_draft_acceptance(p, q, 2, "recursive_without_replacement", draws=0)
    with pytest.raises(ValueError, match="optimal_acceptance: k must be an integer >= 1, got 0"):
        theory.optimal_acceptance(p, q, 0)
    with pytest.raises(ValueError, match="kseq_guarantee: k must be an integer >= 1, got 0"):
        theory.kseq_guarantee(0)
    with pytest.raises(ValueError, match="expected_tree_tokens: drawn must be 'iid' or 'distinct', got 'x'"):
        theory.expected_tree_tokens(constant(GOLDEN[0]), constant(GOLDEN[1]), 1, 1, "kseq", "x")

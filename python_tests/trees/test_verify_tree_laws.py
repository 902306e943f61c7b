# SPDX-License-Identifier: Apache-2.0
"""verify_tree's output follows the enumerated distribution, and the same test finds wrong ways of drafting."""

import numpy as np
import pytest
from support import tree_laws
from support.tree_laws import TELLING, constant, draws, rows_of

from specdec_kernels import testing
from specdec_kernels.reference.tree_law import distinct_trees, iid_trees, mixed, separate_trees

CASES = [
    *[
        (method, "iid", 3, 2, 2)
        for method in ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal")
    ],
    *[
        (method, "iid", 3, 3, 1)
        for method in ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal")
    ],
    ("kseq", "iid", 2, 3, 3),
    *[(method, "distinct", 3, 2, 2) for method in ("recursive_without_replacement", "target_only", "traversal")],
    *[
        (method, "separate", 3, 2, 2)
        for method in ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal")
    ],
    ("traversal", "distinct", 4, 3, 1),
    ("recursive_without_replacement", "distinct", 4, 3, 1),
]


@pytest.mark.parametrize("method, drawn, V, K, L", CASES)
@pytest.mark.parametrize("kind", ["random", "zeros"])
@pytest.mark.law
@pytest.mark.slow
def test_joint_law(backend, method, drawn, V, K, L, kind):
    """The joint distribution of length and tokens. test_tree_reference.py proves that the reference's enumeration is
    lossless. "separate": independent children, with duplicates as separate siblings."""
    if kind == "zeros" and (drawn != "iid" or V < 3):
        pytest.skip("fewer children than asked for: the trees differ in shape")
    p, q = rows_of(kind, V)
    trees = {
        "iid": iid_trees,
        "separate": separate_trees,
        "distinct": lambda q, K, L: distinct_trees(q, [K] + [2] * (L - 1)),
    }[drawn](q, K, L)
    trees = list(trees)
    law = mixed(trees, p, q, method)
    assert tree_laws.error(law, p, L + 1) < tree_laws.EXACT
    result = testing.check_tokens(draws(backend, trees, p, q, method), law)
    assert result.passed, result


def grouped(q):
    return tree_laws.grouped_trees(q, 3, 1)


def merged(q):
    return tree_laws.without_drafts(iid_trees(q, 2, 1))


@pytest.mark.parametrize(
    "method, wrong",
    [
        ("recursive", grouped),
        ("kseq", grouped),
        ("recursive", merged),
        ("kseq", merged),
        ("recursive", lambda q: distinct_trees(q, [2])),
    ],
)
@pytest.mark.slow
def test_wrong_drafts_are_caught(method, wrong):
    """Drafts grouped as A, A, B instead of A, B, A, and merged or distinct children tested as independent ones, bias
    the output by .008 to .05. The test finds all of them."""
    p, q = map(constant, tree_laws.GOLDEN if (method, wrong) == ("kseq", grouped) else TELLING)
    trees = list(wrong(q))
    right = tree_laws.first_token(mixed(iid_trees(q, 2, 1), p, q, method), 3)
    tokens = draws("cpu", trees, p, q, method)[:, 0]
    assert testing.check_counts(np.bincount(tokens, minlength=3), right).p_value < 1e-9
    law = tree_laws.first_token(mixed(trees, p, q, method), 3)  # biased exactly as enumerated
    assert testing.check_counts(np.bincount(tokens, minlength=3), law).passed

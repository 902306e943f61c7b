# SPDX-License-Identifier: Apache-2.0
"""verify_tree against the float64 reference, token for token outside the band."""

import pytest
import torch
from support import backends, tree_cases
from support.tree_checks import METHODS, agree_on, verify


def agree(backend, **case):
    return agree_on(verify(backend), tree_cases.tree(**case), f"{case}")


SHAPES = [
    dict(V=7, K=3, L=2),
    dict(V=3, K=4, L=3),  # shared prefixes
    dict(V=11, K=1, L=4),  # a chain
    dict(V=1, K=2, L=2),
    dict(V=5, N=12),  # any tree, padded
    dict(V=3, N=24, linked=True, max_depth=2),
    dict(V=9, N=10, shuffled=True),
    dict(V=2500, K=3, L=2, kinds=["near", "peaked", "dirichlet"]),  # three chunks, the last one ragged
    dict(V=1031, N=9, shuffled=True, linked=True),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items() if k != "kinds"))
def test_agreement(backend, method, shape):
    B = backends.scale(105 if shape["V"] < 100 else 28, backend)
    out, ref = agree(backend, seed=1, B=B, method=method, **shape)
    if shape["V"] > 1 and method != "greedy" and (method != "target_only" or shape["V"] < 100):
        assert 0.05 < (ref.num_accepted > 0).double().mean() < 0.99, "not a test of both answers"


OPTIONS = [
    dict(filtered=True), dict(filtered=True, N=9), dict(stats=True), dict(stats=True, N=9, shuffled=True),
    dict(probs=True), dict(probs=True, N=9), dict(dtype=torch.bfloat16),
    dict(dtype=torch.float16, draft_dtype=torch.bfloat16, N=9), dict(Vq=5), dict(Vq=13, N=9), dict(one_hot=True, N=9),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", OPTIONS, ids=lambda c: " ".join(c))
def test_agreement_of_options(backend, method, case):
    if method == "kseq" and case.get("one_hot"):
        pytest.skip("kseq needs draft rows")
    agree(backend, seed=2, B=backends.scale(56, backend), V=8, method=method, **case)


def test_target_only_without_a_draft(backend):
    """The call of an engine with a greedy drafter: the target's rows and parameters, and no draft rows."""
    agree(backend, seed=4, B=backends.scale(56, backend), V=8, N=9, method="target_only", one_hot=True, filtered=True)

# SPDX-License-Identifier: Apache-2.0
import io

import laws
import numpy as np
import pytest
from plain import Plain
from rich.console import Console

import specdec_kernels as sk
from specdec_kernels import selfcheck, selfcheck_trees


@pytest.fixture
def report(monkeypatch):
    """run() with fewer draws, and what it printed."""
    monkeypatch.setattr(selfcheck, "STEPS", 250_000)
    monkeypatch.setattr(selfcheck_trees, "TREE_STEPS", 100_000)

    def go():
        text = io.StringIO()
        passed = selfcheck.run(Console(file=text, width=140), seed=11)
        return passed, text.getvalue()

    return go


def test_right_ops_pass(report):
    passed, text = report()
    assert passed and text.splitlines()[-1].startswith("PASSED") and "FAIL" not in text
    assert "seed 11" in text and text.count("pass ") == len(selfcheck.CHECKS)


class ResidualIsP(Plain):
    def residual(self, p, q):
        return p


@pytest.mark.parametrize("check", [selfcheck.agreement, selfcheck.plain_law])
def test_wrong_ops_fail(report, monkeypatch, check):
    """Reference and joint law each catch a residual that is p."""
    monkeypatch.setattr(selfcheck, "CHECKS", (check,))
    monkeypatch.setattr(sk, "verify_chain", ResidualIsP())
    passed, text = report()
    assert not passed and "FAILED" in text and "seed 11" in text


def merged(honest):
    """Merged nodes are tested once, however often they were drafted."""
    return lambda tree, p, q, **options: honest(tree[:2], p, q, **options)


def swapped(honest):
    return lambda tree, p, q, **options: honest(tree, q, p, **options)


@pytest.mark.parametrize("mutant, check", [(merged, "joint_law_of_recursive"), (swapped, "agreement_of_trees")])
def test_wrong_trees_fail(report, monkeypatch, mutant, check):
    monkeypatch.setattr(selfcheck, "CHECKS", [c for c in selfcheck.TREE_CHECKS if c.__name__ == check])
    monkeypatch.setattr(sk, "verify_tree", mutant(sk.verify_tree))
    passed, text = report()
    assert not passed and text.count("FAIL ") == 1


def test_wrong_random_numbers_fail(report, monkeypatch):
    monkeypatch.setattr(selfcheck, "CHECKS", (selfcheck.known_answers,))
    monkeypatch.setattr(sk, "uniforms", lambda seed, offset, n, domain: sk.reference.uniforms(seed, offset, n, domain) + 2.0**-53)
    assert not report()[0]


def test_its_chi_square_is_scipys():
    """p-values equal to 6 digits; the power estimate within a tenth of the noncentral law's."""
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(60))
    counts = rng.multinomial(100_000, law)
    here = selfcheck.chi_square(dict(enumerate(counts.tolist())), dict(enumerate(law.tolist())))
    there = laws.chi_square(counts, law)
    assert here.p_value == pytest.approx(there.p_value, rel=1e-6) and here.cells == there.cells
    assert here.detects == pytest.approx(there.detects, rel=0.1)

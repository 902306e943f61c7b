# SPDX-License-Identifier: Apache-2.0
import io

from support import laws
import numpy as np
import pytest
import torch
from support.plain import Plain
from rich.console import Console

import specdec_kernels as sk
from specdec_kernels import selfcheck
from specdec_kernels.selfcheck import rules as selfcheck_rules
from specdec_kernels.selfcheck import trees as selfcheck_trees
from specdec_kernels.rules import TABLE


@pytest.fixture
def report(monkeypatch):
    """run() with fewer draws, and what it printed."""
    monkeypatch.setattr(selfcheck, "STEPS", 250_000)
    monkeypatch.setattr(selfcheck_trees, "TREE_STEPS", 100_000)
    monkeypatch.setattr(selfcheck_rules, "RULE_STEPS", 100_000)

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


def token_by_token(honest):
    return lambda *args, method="token", **options: honest(*args, **options)


def bonus_of_p(honest):
    """The draft's row at the end is not read."""
    return lambda target, tokens, draft, **options: honest(target, tokens, draft[:, :-1].contiguous(), **options)


def beta_left_at_1(honest):
    return lambda *args, rule, alpha, **options: honest(*args, rule="lenience", alpha=1 - alpha, **options)


@pytest.mark.parametrize("mutant, check", [
    (token_by_token, "agreement_of_rules"), (bonus_of_p, "joint_law_of_block_token_v3"), (beta_left_at_1, "joint_law_of_token_lossy"),
])  # fmt: skip
def test_wrong_rules_fail(report, monkeypatch, mutant, check):
    monkeypatch.setattr(selfcheck, "CHECKS", [c for c in selfcheck.RULE_CHECKS if c.__name__ == check])
    monkeypatch.setattr(sk, "verify_chain", mutant(sk.verify_chain))
    passed, text = report()
    assert not passed and text.count("FAIL ") == 1


@pytest.mark.parametrize("name", TABLE)
def test_each_rule_is_compared(name):
    """A rule that is verified as another one is found by the comparison with the reference alone."""
    others = {"exact": "chow", "lossy": "ensemble", "diff": "chow", "opt": "opt_log", "diff_log": "chow_log", "opt_log": "chow_log"}
    other = others.get(name, "exact")

    class Confused:
        reference = sk.reference

        @staticmethod
        def verify_chain(rule, **args):
            return sk.verify_chain(**args, rule=torch.where(rule == TABLE[name].code, TABLE[other].code, rule))

    assert not selfcheck_rules.agreement_of_rules(Confused, "cpu", 11).passed


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

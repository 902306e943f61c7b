# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from support import answers
from support.plain import Plain

import specdec_kernels as sk
from specdec_kernels import selfcheck
from specdec_kernels.rules import TABLE
from specdec_kernels.selfcheck import chains as selfcheck_chains
from specdec_kernels.selfcheck import rules as selfcheck_rules
from specdec_kernels.selfcheck import trees as selfcheck_trees


@pytest.fixture
def report(monkeypatch, capsys):
    """Return a function that runs selfcheck with fewer draws, and returns the result and the output."""
    monkeypatch.setattr(selfcheck_chains, "STEPS", 250_000)
    monkeypatch.setattr(selfcheck_trees, "TREE_STEPS", 100_000)
    monkeypatch.setattr(selfcheck_rules, "RULE_STEPS", 100_000)

    def go():
        return selfcheck.run(seed=11), capsys.readouterr().out

    return go


@pytest.mark.thorough
def test_right_ops_pass(report):
    passed, text = report()
    assert passed and text.splitlines()[-1].startswith("PASSED") and "FAIL" not in text
    assert "seed 11" in text and text.count(" pass ") == len(selfcheck.CHECKS)


class ResidualIsP(Plain):
    def residual(self, p, q):
        return p


@pytest.fixture
def fails(report, monkeypatch):
    """Return a function that returns whether the named check fails for a wrong op."""

    def go(check, op, wrong):
        monkeypatch.setattr(selfcheck, "CHECKS", {check: selfcheck.CHECKS[check]})
        monkeypatch.setattr(sk, op, wrong)
        passed, text = report()
        assert ("FAILED" in text) == ("FAIL " in text) == (not passed) and "seed 11" in text
        return not passed

    return go


@pytest.mark.parametrize("check", ["float64 reference", "joint distribution, T = 1"])
def test_wrong_ops_fail(fails, check):
    """The reference and the joint distribution each detect a residual that is p."""
    assert fails(check, "verify_chain", ResidualIsP())


def merged(honest):
    """Return a wrong op that tests merged nodes once, however often they were drafted."""
    return lambda tree, p, q, **options: honest(tree[:2], p, q, **options)


def swapped(honest):
    return lambda tree, p, q, **options: honest(tree, q, p, **options)


@pytest.mark.parametrize(
    "mutant, check", [(merged, "joint distribution, recursive"), (swapped, "float64 reference, trees")]
)
def test_wrong_trees_fail(fails, mutant, check):
    assert fails(check, "verify_tree", mutant(sk.verify_tree))


def token_by_token(honest):
    return lambda *args, method="token", **options: honest(*args, **options)


def bonus_of_p(honest):
    """Return a wrong op that ignores the draft's row for the bonus position."""
    return lambda target, tokens, draft, **options: honest(target, tokens, draft[:, :-1].contiguous(), **options)


def beta_left_at_1(honest):
    return lambda *args, rule, alpha, **options: honest(*args, rule="lenience", alpha=1 - alpha, **options)


RULES_AND_BLOCKS = next(iter(selfcheck_rules.RULE_CHECKS))
WRONG = [(token_by_token, RULES_AND_BLOCKS), (bonus_of_p, "joint distribution, block by token_v3")]


@pytest.mark.parametrize("mutant, check", [*WRONG, (beta_left_at_1, "joint distribution, lossy")])
def test_wrong_rules_fail(fails, mutant, check):
    assert fails(check, "verify_chain", mutant(sk.verify_chain))


@pytest.mark.thorough
@pytest.mark.parametrize("name", TABLE)
def test_each_rule_is_compared(name):
    """The comparison with the reference alone finds a rule that is verified as another one."""
    others = {
        "exact": "chow",
        "lossy": "ensemble",
        "diff": "chow",
        "opt": "opt_log",
        "diff_log": "chow_log",
        "opt_log": "chow_log",
    }
    other = others.get(name, "exact")

    class Confused:
        reference = answers  # cached: its answers are the same for each rule

        @staticmethod
        def verify_chain(rule, **args):
            return sk.verify_chain(**args, rule=torch.where(rule == TABLE[name].code, TABLE[other].code, rule))

    assert not selfcheck_rules.agreement(Confused, "cpu", 11).passed


def test_wrong_random_numbers_fail(fails):
    honest = sk.reference.uniforms
    assert fails("random numbers", "uniforms", lambda *args: honest(*args) + 2.0**-53)

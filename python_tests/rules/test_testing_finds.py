# SPDX-License-Identifier: Apache-2.0
"""specdec_kernels.testing finds wrong rules that were seen in engines and papers, and passes right ones."""

import numpy as np
import pytest
from support import wild_rules as wild
from support import wrong_rules as wrong
from support.wild_rules import by

from specdec_kernels import testing

CASES = {case.name: case for case in testing.cases()}
DRAWS = 40_000


@pytest.mark.parametrize("name", CASES)
def test_right_rules_pass(name):
    """verify_chain passes. For the token method the drafts are drawn from the same seeds, and accepted lengths are
    checked too."""
    testing.assert_verifier(wild.right, CASES[name], DRAWS, expected="token", draft=wild.honest)
    testing.assert_verifier(wild.block, CASES[name], DRAWS)


VERIFIERS = {
    "one-hot drawn again": (by(wild.ResidualIsP()), "one-hot draft"),
    "residual is p": (by(wild.ResidualIsP()), "opposed draft"),
    "one uniform twice": (by(wild.OneUniformTwice()), "disjoint supports"),
    "zero accepts": (by(wild.ZeroAccepts()), "supports that differ"),
    "zero accepts, peaked": (by(wild.ZeroAccepts()), "gaps of 50"),
    "cut where forbidden": (wild.cut_where_forbidden, "supports that differ"),
    "cut by its own probability": (wild.cut_by_own_probability, "rows by position"),
    "two largest": (wild.two_largest, "rows by position"),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_wrong_rules_are_found(name):
    """Wrong rules are found without a rule to expect, because the completed tokens do not follow the target
    distribution."""
    verify, case = VERIFIERS[name]
    with pytest.raises(AssertionError, match=f"{case}: FAIL"):
        testing.assert_verifier(verify, CASES[case], DRAWS)


DRAFTERS = {
    wild.at_another_temperature: "draft equals target",
    wild.in_bfloat16: "long tail",
    wild.numbers_of_the_final_draw: "draft equals target",
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_wrong_drafters_are_found(drafter):
    assert not testing.check_verifier(wild.right, CASES[DRAFTERS[drafter]], DRAWS, draft=drafter)


def test_a_right_rule_of_another_length_is_told_from_the_one_expected():
    """Block verification is lossless, but accepts more than the token method, so accepted lengths distinguish them."""
    assert testing.check_verifier(wild.block, CASES["opposed draft"], DRAWS, expected="block")
    assert not testing.check_verifier(wild.block, CASES["opposed draft"], DRAWS, expected="token")


@pytest.mark.parametrize("rule", [wrong.greedy_block, wrong.uncapped_last_test])
def test_wrong_blocks_are_found(rule):
    p, q = (side.probabilities for side in (CASES["opposed draft"].p, CASES["opposed draft"].q))

    def draw(seeds):
        return testing.complete_tokens(wrong.drawn(lambda draw: rule(draw, p, q), seeds), p, 3)

    assert not testing.check_law(draw, testing.enumerate_law(p, 3), DRAWS)


EVEN = testing.Case("one row", "", lambda t: np.log([0.4, 0.3, 0.2, 0.1]), lambda t: np.log([0.4, 0.3, 0.2, 0.1]), 2)


def test_marginals_are_not_enough():
    """If a draft shares a random number with the final draw, the tokens of each position are distributed correctly, but
    the sequences are not."""
    seen, law = [], EVEN.law()

    def verify(step):
        seen.append(wild.right(step))
        return seen[-1]

    joint = testing.check_verifier(verify, EVEN, DRAWS, draft=wild.numbers_of_the_final_draw)
    tokens = np.concatenate(seen)
    assert (tokens >= 0).all()
    for i in range(3):
        marginal = [sum(mass for t, mass in law.items() if t[i] == v) for v in range(4)]
        assert testing.check_counts(np.bincount(tokens[:, i]), marginal)
    assert not joint and joint.statistic > 10_000


def test_mild_rows_are_not_enough():
    """With a draft near the target, the wrong residual p is not found. With an opposed draft it is found in as many
    draws."""
    target = CASES["opposed draft"].target
    mild = testing.Case("mild", "", target, lambda t: 0.97 * target(t), 2)
    assert testing.check_verifier(by(wild.ResidualIsP()), mild, DRAWS)
    assert not testing.check_verifier(by(wild.ResidualIsP()), CASES["opposed draft"], DRAWS)

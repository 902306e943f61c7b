# SPDX-License-Identifier: Apache-2.0
"""specdec_kernels.testing finds wrong rules that were seen in engines and papers, and passes right ones."""

import numpy as np
import pytest
from support import wild_rules as wild
from support.wild_rules import by

from specdec_kernels import testing
from specdec_kernels.reference import chain_law

CASES = {case.name: case for case in testing.cases()}
DRAWS = 40_000


@pytest.mark.parametrize("name", CASES)
def test_right_rules_pass(name):
    """Our ops pass. With drafts drawn from the same seeds the accepted lengths are checked too; with block verification
    they may be anything."""
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
    "uncapped block": (wild.uncapped_block, "opposed draft"),
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_wrong_rules_are_found(name):
    """Wrong rules are found under any expected rule, because the completed tokens do not follow the target
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
    """Block verification is lossless, but accepts more than the token method, so accepted lengths tell them apart."""
    assert testing.check_verifier(wild.block, CASES["opposed draft"], DRAWS, expected="block")
    assert not testing.check_verifier(wild.block, CASES["opposed draft"], DRAWS, expected="token")


P, Q = np.array([0.2, 0.8]), np.array([0.8, 0.2])
WIDE, CUT = np.array([0.45, 0.3, 0.15, 0.1]), np.array([0.0, 0.0, 0.6, 0.4])
LAWS = {  # sampler, right distribution, its actual distribution by enumeration
    "siblings": (wild.siblings_against_one_p(P, Q), P, [0.32, 0.68]),
    "siblings not recorded": (wild.few_siblings_recorded(40, 34, 32), np.full(40, 1 / 40), None),
    "coin": (wild.another_coin_for_the_residual(WIDE, CUT, np.array([0.2, 0.3, 0.3, 0.2])), (WIDE + CUT) / 2, None),
}


@pytest.mark.parametrize("name", LAWS)
def test_wrong_samplers_are_found(name):
    draw, want, is_ = LAWS[name]
    report = testing.check_law(draw, {(v,): x for v, x in enumerate(want)}, DRAWS)
    assert not report and report.detects < 0.03
    if is_:
        testing.assert_law(draw, {(v,): x for v, x in enumerate(is_)}, DRAWS)


def test_penalties_that_do_not_grow_are_found():
    """With transforms (here a penalty), the distribution is that of plain decoding. Using the committed counts
    throughout a step is wrong by a total variation of .159 on two tokens."""
    case = wild.PENALISED
    testing.assert_verifier(wild.right_penalties, case, DRAWS, expected="token")
    assert not testing.check_verifier(wild.committed_counts, case, DRAWS)
    p, raw = case.p.probabilities, lambda tokens: np.array([0.5, 0.3, 0.2])
    transformed = testing.enumerate_law(case.target, 3, transforms=[wild.presence, testing.softmax])
    assert case.law() == pytest.approx(transformed, rel=1e-6)  # a case rounds its logits to float32
    wrong = testing.complete_law(chain_law(raw, case.draft, 2), p, 2)
    right = testing.enumerate_law(p, 2)
    assert sum(abs(right[t] - wrong.get(t, 0)) for t in right) / 2 == pytest.approx(0.159, abs=5e-4)


EVEN = testing.Case("one row", "", lambda t: np.log([0.4, 0.3, 0.2, 0.1]), lambda t: np.log([0.4, 0.3, 0.2, 0.1]), 2)


def test_marginals_are_not_enough():
    """A draft that shares a random number with the final draw: the tokens of each position are distributed correctly,
    but the sequences are not."""
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
    """The wrong residual p is not found with a draft near the target, though it is found with another in as many
    draws."""
    target = CASES["opposed draft"].target
    mild = testing.Case("mild", "", target, lambda t: 0.97 * target(t), 2)
    assert testing.check_verifier(by(wild.ResidualIsP()), mild, DRAWS)
    assert not testing.check_verifier(by(wild.ResidualIsP()), CASES["opposed draft"], DRAWS)

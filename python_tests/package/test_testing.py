# SPDX-License-Identifier: Apache-2.0
"""specdec_kernels.testing: its statistics against scipy's, its enumerations, errors, examples and fixtures."""

import importlib
import inspect
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from support import paths

from specdec_kernels import testing
from specdec_kernels.testing import outcomes, statistics

rng = np.random.default_rng


# ---- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 5, 50, 1000, 30_000])
def test_the_tail_is_scipys(freedom):
    """Tail probabilities agree out to 1e-290."""
    for p in (0.999, 0.5, 1e-2, 1e-6, 1e-50, 1e-150, 1e-290):
        x = stats.chi2.isf(p, freedom)
        assert statistics.chi_square_tail(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-8)


@pytest.mark.parametrize("freedom, noncentrality", [(1, 0.5), (3, 60.0), (80, 200.0), (4000, 900.0), (2, 20_000.0)])
def test_the_noncentral_tail_is_scipys(freedom, noncentrality):
    for p in (0.999, 0.99, 0.5, 1e-3):
        x = stats.ncx2.isf(p, freedom, noncentrality)
        assert statistics.chi_square_tail(x, freedom, noncentrality) == pytest.approx(p, rel=1e-6)


def test_the_chi_square_is_scipys():
    law = rng(0).dirichlet(np.ones(60)) * 0.999 + 1e-3 / 60
    counts = rng(1).multinomial(1_000_000, law)
    report = testing.check_counts(counts, law)
    wanted = stats.chisquare(counts, law * counts.sum())
    assert (report.statistic, report.p_value) == pytest.approx((wanted.statistic, wanted.pvalue), rel=1e-9)
    assert report.freedom == 59 and report.draws == 1_000_000 and report.rare == 0


@pytest.mark.parametrize("kind", ["spread", "one cell"])
def test_a_shift_of_what_it_detects_is_found(kind):
    """A shift a tenth above the detectable size, spread over all cells (the hardest to see) or not, is found at least
    58 times in 60. Half of the detectable size, spread over all cells, is mostly missed."""
    cells, n = 40, 50_000
    law, sign = np.full(cells, 1 / cells), np.resize([1.0, -1.0], cells)
    detects = testing.check_counts(rng(0).multinomial(n, law), law).detects
    assert 0.01 < detects < 0.03
    shape = sign if kind == "spread" else np.r_[1.0, -np.ones(cells - 1) / (cells - 1)]
    shape = 2 * shape / np.abs(shape).sum()  # of total variation 1

    def found(shift):
        draws = rng(2).multinomial(n, law + shift * shape, size=60)
        return sum(not testing.check_counts(counts, law) for counts in draws)

    assert found(1.1 * detects) >= 58
    assert kind == "one cell" or found(detects / 2) < 20


def test_right_draws_pass_as_often_as_stated():
    """p-values of right draws are uniform, also if most of the outcomes are rare."""
    law = 0.8 ** np.arange(60)
    law /= law.sum()
    values = [testing.check_counts(c, law).p_value for c in rng(3).multinomial(3000, law, size=400)]
    assert stats.kstest(values, "uniform").pvalue > 1e-4 and min(values) > 0


def test_rare_outcomes_share_a_cell_or_join_the_smallest():
    law = [0.5, 0.496, 0.001, 0.001, 0.002]
    report = testing.check_counts([500, 496, 1, 1, 2], law)
    assert report.rare == 3 and report.freedom == 1 and report.statistic == pytest.approx(0, abs=1e-20)
    assert testing.check_counts([5000, 4960, 10, 10, 20], law).freedom == 4
    together = testing.check_counts([2500, 2480, 5, 5, 10], law, fewest=11)
    assert together.freedom == 2 and together.rare == 3  # 20 expected together


def test_impossible_outcomes_fail_at_once():
    law = {(0,): 0.5, (1,): 0.5, (2,): 0.0}
    for unlikely in ((2,), (0, 1)):
        report = testing.check_counts({(0,): 500_000, (1,): 499_999, unlikely: 1}, law)
        assert not report and report.p_value == 0 and report.impossible[0].outcome == unlikely
        assert "1 impossible outcomes drawn" in str(report)


def test_outcomes_as_good_as_impossible_fail():
    """Outcomes of e^-50 on peaked rows fail. In a shared cell they would not be noticed."""
    law = {0: 0.5, 1: 0.4999, 2: 1e-4 - 1e-21, 3: 1e-21}
    assert not testing.check_counts({0: 50_000, 1: 49_989, 2: 10, 3: 1}, law)
    assert testing.check_counts({0: 50_000, 1: 49_989, 2: 11}, law)
    once = {0: 0.5, 1: 0.5 - 1e-7, 2: 1e-7}  # expected .01 times: one is accepted, five fail
    assert testing.check_counts({0: 50_000, 1: 49_999, 2: 1}, once)
    assert not testing.check_counts({0: 50_000, 1: 49_995, 2: 5}, once)


def test_the_text_names_the_worst_cells():
    report = testing.check_counts({(0, 1): 6000, (1,): 4000}, {(0, 1): 0.5, (1,): 0.5}, name="mine")
    with pytest.raises(AssertionError) as failed:
        statistics.passed(report)
    lines = str(failed.value).splitlines()
    assert lines[0].startswith("mine: FAIL, p = 5.5e-89 (fails below 1e-06), 10000 draws detect a shift of 0.036")
    assert lines[1].strip() == "chi-square 400.0, 1 degrees of freedom, 0 rare outcomes"
    assert lines[2].strip() == "(0, 1): expected 5000.0, drawn 6000 (+14.1 standard deviations)"


# ---- sequences -------------------------------------------------------------------------------------------------------


def test_rows_are_counted_whatever_their_ids():
    """Ids may be as large as 2^62."""
    for ids in ([0, 1, 7], [0, 151_935, 2**40], [2**62, 3, 2**61]):
        rows = np.array(ids)[rng(0).integers(3, size=(3000, 9))]
        ends = rng(1).integers(10, size=3000)
        rows[np.arange(9) >= ends[:, None]] = -1
        wanted = {}
        for row, end in zip(rows.tolist(), ends):
            wanted[tuple(row[:end])] = wanted.get(tuple(row[:end]), 0) + 1
        for form in (rows, torch.from_numpy(rows), [row[:end] for row, end in zip(rows, ends)]):
            assert outcomes.count_outcomes(outcomes.token_rows("test", form)) == wanted


def test_prompts_and_transforms():
    """Rows that depend on the prompt, the position and all tokens so far, against sums by hand."""
    model = lambda tokens: np.array([1.0, 2.0]) * (1 + sum(tokens))
    later = lambda row, tokens: row / len(tokens)
    law = testing.enumerate_law(model, 2, prompt=[3, 1], transforms=[later, testing.softmax])
    first = testing.softmax(np.array([5.0, 10.0]) / 2)
    second = [testing.softmax(np.array([5.0, 10.0]) / 3), testing.softmax(np.array([6.0, 12.0]) / 3)]
    assert law == pytest.approx({(a, b): first[a] * second[a][b] for a in (0, 1) for b in (0, 1)})
    assert testing.softmax([0.0, np.log(4)], temperature=2.0) == pytest.approx([1 / 3, 2 / 3])


def test_completed_draws_have_the_completed_distribution():
    model = lambda tokens: [[0.2, 0.3, 0.5], [0.6, 0.4, 0.0]][sum(tokens) % 2]
    law = {(0, 1): 0.25, (2,): 0.5, (): 0.25}
    tokens = [[[0, 1], [2], [2], []][i] for i in rng(0).integers(4, size=30_000)]
    completed = testing.complete_tokens(tokens, model, 3, seed=4)
    assert testing.check_tokens(completed, testing.complete_law(law, model, 3))
    assert testing.complete_law(law, model, 1) == pytest.approx({(0,): 0.3, (2,): 0.625, (1,): 0.075})
    impossible = testing.complete_tokens([[1, 2], [9], [0, 1, 2]], model, 3).tolist()
    assert impossible[0][:2] == [1, 2] and impossible[0][2] == -1 and impossible[1] == [9, -1, -1]


def test_batches_cover_the_seeds():
    seen = []

    def draw(seeds):
        seen.extend(seeds.tolist())
        return seeds % 2

    report = testing.check_law(draw, {(0,): 0.5, (1,): 0.5}, 1001, batch=300, seed=7)
    assert seen == [*range(7, 1008)] and report.draws == 1001 and report.statistic == pytest.approx(1 / 1001)


def test_steps_are_what_they_say():
    """Rows follow the drafts, drafts have the reported distribution, and probabilities are the transform's."""
    case = testing.Case("halves", "", lambda t: np.arange(3.0) + sum(t), lambda t: -np.arange(3.0) * (1 + len(t)), 2,
                        transform=lambda row, t: testing.softmax(row, temperature=2.0))  # fmt: skip
    step = case.step(torch.arange(5000))
    before = torch.cat((torch.zeros(5000, 1), step.draft_tokens.cumsum(1)), 1)
    assert torch.equal(step.target_logits, torch.arange(3.0) + before[..., None])
    assert torch.allclose(step.target_probs, (step.target_logits / 2).softmax(-1))
    assert torch.allclose(step.draft_probs, step.draft_logits.softmax(-1))
    q = [testing.softmax(-np.arange(3.0) * k) for k in (1, 2)]
    assert testing.check_tokens(step.draft_tokens, {(a, b): q[0][a] * q[1][b] for a in range(3) for b in range(3)})
    assert not step.one_hot and step.to("cpu").seed is step.seed
    certain = testing.Case("certain", "", case.target, lambda t: 2, 1).step(torch.arange(3))
    assert certain.one_hot and certain.draft_tokens.tolist() == [[2]] * 3
    assert certain.draft_probs.tolist() == [[[0.0, 0.0, 1.0]]] * 3 and certain.draft_logits[0, 0, 0] == -np.inf


def test_cases_are_worth_their_names():
    """Names differ, and descriptions too, but for one pair. Each case sometimes rejects its first draft and sometimes
    accepts all drafts, except where draft and target are equal or have disjoint supports."""
    cases = testing.cases()
    assert len({case.name for case in cases}) == len({case.finds for case in cases}) + 1 == len(cases)  # gap() twice
    for case in cases:
        by_length = {}
        for tokens, mass in case.law("token").items():
            by_length[len(tokens)] = by_length.get(len(tokens), 0) + mass
        full = by_length.get(case.length + 1, 0.0)
        assert case.name == "draft equals target" or 0.05 < by_length[1] < 0.95, case.name
        assert case.name == "disjoint supports" or full > 0.03, case.name
        target = testing.enumerate_law(case.p.probabilities, case.length + 1)
        for method in ("token", "block"):
            law = testing.complete_law(case.law(method), case.p.probabilities, case.length + 1)
            assert max(abs(law.get(t, 0) - m) for t, m in target.items()) < 1e-12


# ---- errors ----------------------------------------------------------------------------------------------------------

EVEN = {(0,): 0.5, (1,): 0.5}
ERRORS = {
    "no draws": (lambda: testing.check_counts({}, EVEN), ValueError, "at least one draw, got none"),
    "sum": (lambda: testing.check_counts([1, 1], [0.5, 0.4]), ValueError, "sum to 1, got a sum of 0.9"),
    "nan": (lambda: testing.check_counts([1, 1], [0.5, np.nan]), ValueError, "sum to 1, got a sum of nan"),
    "negative": (lambda: testing.check_counts([1, 1], [1.5, -0.5]), ValueError, "check_counts: law must be"),
    "floats": (lambda: testing.check_tokens(np.ones((2, 1)), EVEN), TypeError, "must be integers, got float64"),
    "float in a list": (lambda: testing.check_tokens([[1.0]], EVEN), TypeError, "float"),
    "shape": (lambda: testing.check_tokens(np.zeros((1, 2, 3), int), EVEN), ValueError, r"\[N, L\], got \[1, 2, 3\]"),
    "a wrong id": (lambda: testing.check_tokens([[1], [0, -2]], EVEN), ValueError, r"or -1 as padding, got \[0, -2\]"),
    "a lone wrong id": (lambda: testing.check_tokens(np.array([-5]), EVEN), ValueError, r"as padding, got \[-5\]"),
    "a wrong id to complete": (
        lambda: testing.complete_tokens([[-3]], lambda tokens: [0.0, 1.0], 3),
        ValueError,
        r"complete_tokens: tokens must be ids >= 0, or -1 as padding, got \[-3\]",
    ),
    "pads": (lambda: testing.check_tokens([[0, -1, 1]], EVEN), ValueError, r"with -1 at their end.*got \[0, -1, 1\]"),
    "lost draws": (lambda: testing.check_law(lambda s: s[1:], EVEN, 9), ValueError, "for each seed, 9, got 8"),
    "row": (lambda: testing.enumerate_law(lambda t: [0.5, 0.6], 1, (4,)), ValueError, r"model\(\(4,\)\) .*sum of 1.1"),
    "rows": (lambda: testing.enumerate_law(lambda t: [[1.0]], 1), ValueError, r"got shape \[1, 1\]"),
    "expected": (lambda: testing.check_verifier(None, testing.cases()[0], expected="kseq"), ValueError, "got 'kseq'"),
    "length": (lambda: testing.Case("", "", None, None, 0), ValueError, "length must be at least 1, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_what_was_wanted(name):
    call, error, text = ERRORS[name]
    with pytest.raises(error, match=text):
        call()


# ---- docstrings, pytest ----------------------------------------------------------------------------------------------

FUNCTIONS = [name for name in testing.__all__ if inspect.isfunction(getattr(testing, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings(name):
    function = getattr(testing, name)
    text, parameters = inspect.getdoc(function), list(inspect.signature(function).parameters)
    sections = re.findall(r"^(Args|Returns|Raises|Example|Source):", text, re.M)
    assert sections == sorted(sections, key=["Args", "Returns", "Raises", "Example", "Source"].index)
    assert {"Returns", "Example"} <= set(sections) and ("Args" in sections) == bool(parameters)
    assert all(re.search(rf"\b{p}\b", text) for p in parameters)
    assert ">>> " in text  # test_docstrings.py runs it


def test_neither_pytest_nor_scipy_is_needed():
    code = "import sys; sys.modules['pytest'] = sys.modules['scipy'] = None; from specdec_kernels import testing"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": paths.PYTHONPATH})
    assert "pytest" not in importlib.import_module("specdec_kernels.testing.laws").__dict__


PLUGIN = """
import specdec_kernels as sk
from specdec_kernels import testing

def verify(step):
    draft = None if step.one_hot else step.draft_logits
    return sk.verify_chain(step.target_logits, step.draft_tokens, draft, seed=step.seed, offset=step.seed * 0).tokens

def test_verifier(verification_case, assert_verifier):
    assert_verifier(verify, verification_case, 2000)

def test_sampler(assert_law):
    assert_law(lambda seeds: seeds % 3, {(v,): 0.5 for v in range(2)}, 300)
"""


@pytest.mark.slow
def test_fixtures(tmp_path):
    """The fixtures test every case. Their output lists the shifts that would be detected, and a failure's report."""
    (tmp_path / "test_mine.py").write_text(PLUGIN)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["specdec_kernels.testing.pytest_plugin"]\n')
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_mine.py"]
    longer = ("CI", "BUILD_NUMBER")  # if these are set, pytest's summary repeats the whole error
    env = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST_") and name not in longer}
    env |= {"PYTHONPATH": str(paths.ROOT)}
    out = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    n = len(testing.cases())
    assert f"1 failed, {n} passed" in out.stdout, out.stdout + out.stderr
    assert out.stdout.count("draws detect a shift of") == n + 2  # also the failed one, in its traceback
    assert "test_mine.py::test_verifier[gaps of 300]: gaps of 300: pass, p = " in out.stdout
    assert "AssertionError: FAIL, p = 0 " in out.stdout and "impossible outcomes drawn: (2,) 100 times" in out.stdout

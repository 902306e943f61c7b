# SPDX-License-Identifier: Apache-2.0
"""Rules and block verification at the edges: invalid rows, thresholds, greedy rows, defaults, and wrong arguments."""

import math

import pytest
import torch
from support import backends, cases, checks, flat, rule_cases, rule_checks, surface
from support.answers import verify_chain as reference_verify
from support.checks import ln
from support.rule_checks import one

import specdec_kernels as sk
from specdec_kernels.rules import TABLE


@pytest.mark.parametrize("name", TABLE)
def test_bad_rows(sweep, name):
    """With an invalid row the op does as the reference, emits tokens of the vocabulary, and reports an invalid target
    row. The other request's status stays 0."""
    V = 1100
    good_p, good_q = cases.rows_pair(3, 1, V, kinds=["near"])
    alpha = rule_cases.ALPHAS[name][-1]
    how = {"rule": name, "alpha": None if not alpha else alpha if len(alpha) == 2 else alpha[0]}
    d = int(good_q[0].argmax())
    for method in ("token", "block") if TABLE[name].defines_distribution else ("token",):
        for row, _ in cases.bad_rows(V):
            for p, q in ((row, good_q[0]), (good_p[0], row), (row, row)):
                args = one(p, q, d, 0.3, method=method, **how)
                whole = {
                    k: torch.cat([x, one(good_p[0], good_q[0], d, 0.3)[k]]) if torch.is_tensor(x) else x
                    for k, x in args.items()
                }
                out, ref = sweep(**whole), reference_verify(**whole)
                checks.assert_same_tokens(out, ref, f"{name}, {method}")
                assert (out.tokens[:, 0] >= 0).all() and (out.tokens < V).all()
                assert out.status[1] == 0 and (out.status[0] != 0 or torch.equal(p, good_p[0]))


@pytest.mark.parametrize("method", ["token", "block"])
def test_bad_rows_among_good_ones(verify, method):
    rule_checks.bad_rows_among_good_ones(verify, method)


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_greedy_draft_behind_the_vocabulary(verify, method):
    rule_checks.a_greedy_draft_behind_the_vocabulary(verify, method)


@pytest.mark.parametrize("name", rule_cases.LAWS)
def test_nan_probabilities_defer(verify, name):
    rule_checks.nan_probabilities_defer(verify, name)


def test_thresholds_at_the_edge(verify):
    rule_checks.thresholds_at_the_edge(verify)


def test_top_n_keeps_ties(verify):
    rule_checks.top_n_keeps_ties(verify)


@pytest.mark.parametrize("method", ["token", "block"])
def test_greedy(verify, method):
    rule_checks.greedy(verify, method)


@pytest.mark.parametrize("name", ["token_v1", "token_v2", "token_v3"])
def test_token_rules_at_a_greedy_draft(verify, name):
    """A greedy draft's q is 1 at its argmax, also for a large id. The rule keeps id 1000, which has p1 = .6, q1 =
    .9."""
    p = torch.full((1100,), math.log(0.4 / 1099)).index_fill(0, torch.tensor([1000]), math.log(0.6))
    q = torch.full((1100,), math.log(0.1 / 1099)).index_fill(0, torch.tensor([1000]), math.log(0.9))
    out = verify(**one(p, q, 1000, 0.99), draft_temperature=0.0, rule=name, alpha=0.5)
    assert out.num_accepted.tolist() == [1]


def test_block_is_token_at_a_greedy_target(verify):
    args = cases.chain(13, 60, 4, 9, dirty=False, kinds=["near"])
    a, b = verify(**args, temperature=0.0), verify(**args, temperature=0.0, method="block")
    assert torch.equal(a.tokens, b.tokens) and 0 < a.num_accepted.double().mean() < 4


def test_block_through_a_greedy_row(verify):
    rule_checks.block_through_a_greedy_row(verify)


def test_block_where_nothing_is_lacking(verify):
    rule_checks.block_where_nothing_is_lacking(verify)


@pytest.mark.parametrize("method", ["token", "block"])
def test_greedy_rows_between_others(verify, op_backend, method):
    """Any target row of a request may be greedy, through given stats. About half of the draft tokens at greedy rows are
    the argmax."""
    B, G, V = rule_cases.count(240, op_backend), 4, 7
    args = rule_cases.chain(31, B, G, V, method, bonus_row=True, kinds=["near", "dirichlet"])
    some = torch.Generator().manual_seed(2)
    cold, best = torch.rand(B, G + 1, generator=some) < 0.4, torch.rand(B, G, generator=some) < 0.5
    z, d = args["target_logits"], args["draft_tokens"]
    args["draft_tokens"] = torch.where(cold[:, :G] & best, z[:, :G].argmax(-1), d)
    args["target_stats"] = sk.row_stats(sk.Rows(z.reshape(-1, V), temperature=(~cold).float().flatten())).reshape(
        B, G + 1, 4
    )
    checks.assert_same_tokens(verify(**args), reference_verify(**args), method)


def test_bonus_tokens_and_no_draft(verify):
    p = ln(0.5, 0.3, 0.2).expand(2, 1, 3)
    for method in ("token", "block"):
        u = torch.zeros(2, 2, dtype=torch.float64)
        out = verify(
            p,
            torch.tensor([[0], [-1]]),
            None,
            bonus_tokens=torch.tensor([2, 2]),
            uniforms=u,
            rule="chow",
            alpha=0.5,
            method=method,
        )
        assert out.tokens.tolist() == [[0, 2], [0, -1]]
        out = verify(
            p, torch.zeros(2, 0, dtype=torch.int64), None, uniforms=u[:, :1], rule="ensemble", alpha=0.5, method=method
        )
        assert out.tokens.tolist() == [[0], [0]] and out.num_accepted.tolist() == [0, 0]


GOOD = dict(target=torch.zeros(2, 3, 5), draft_tokens=torch.zeros(2, 2, dtype=torch.int64),
            draft=torch.zeros(2, 2, 5), uniforms=torch.zeros(2, 3, dtype=torch.float64))  # fmt: skip
WRONG = [
    ({"rule": "chow", "alpha": 1.2}, ValueError, r"alpha of rule 'chow' must be in \[0, 1\], got 1.2"),
    ({"rule": "opt", "alpha": -0.1}, ValueError, r"alpha of rule 'opt' must be in \[0, inf\), got -0.1"),
    ({"rule": "lossy", "alpha": 1.0}, ValueError, r"alpha of rule 'lossy' must be in \[0, 1\), got 1.0"),
    ({"rule": "lenience", "alpha": 0.0}, ValueError, r"alpha's l of rule 'lenience' must be in \(0, 1\], got 0.0"),
    (
        {"rule": "typical", "alpha": (0.1, -1.0)},
        ValueError,
        r"alpha's delta of rule 'typical' must be in \[0, inf\), got -1.0",
    ),
    ({"rule": "diff", "alpha": math.nan}, ValueError, r"alpha of rule 'diff' must be in \[0, 1\], got nan"),
    ({"rule": "chow", "alpha": (0.1, 0.2)}, ValueError, r"rule 'chow' takes 1 alpha, got 0.1, 0.2"),
    ({"rule": "chow", "alpha": "much"}, TypeError, "alpha must be a number, a pair of numbers or a tensor, got 'much'"),
    ({"alpha": 0.5}, ValueError, "rule 'exact' takes no alpha, got 0.5"),
    (
        {"rule": "typical", "method": "block"},
        ValueError,
        "rule 'typical' defines no distribution, so method must be 'token', got 'block'",
    ),
    ({"rule": torch.zeros(3, dtype=torch.int64)}, ValueError, r"rule must have shape \[2\] or \[1\], got \[3\]"),
    ({"rule": torch.zeros(2)}, ValueError, "rule must be int32 or int64, got float32"),
    (
        {"rule": "chow", "alpha": torch.zeros(2, 3)},
        ValueError,
        r"alpha must have shape \[2\] or \[2, 2\] or \[2, 2, 1\], got \[2, 3\]",
    ),
    ({"rule": "chow", "alpha": torch.zeros(2).double()}, ValueError, "alpha must be float32, got float64"),
]
IN_TENSORS = [
    ({"rule": torch.tensor([0, 17])}, "rule must be a code from 0 to 16, got 17 at index 1"),
    (
        {"rule": torch.tensor([1, 11]), "alpha": torch.tensor([0.5, 1.0])},
        r"alpha of rule 'lossy' must be in \[0, 1\), got 1 at index 1",
    ),
    (
        {"rule": torch.tensor([16, 0]), "alpha": torch.tensor([[0.5, 0.0], [9, 9]])},
        r"the second alpha of rule 'thresholds' must be in \(0, 1\], got 0",
    ),
    (
        {"rule": torch.tensor([0, 13]), "method": "block"},
        "rule 'typical' defines no distribution, so method must be 'token', got 'block' at index 1",
    ),
]


@pytest.mark.parametrize("change, error, message", WRONG)
def test_wrong_arguments(change, error, message):
    with pytest.raises(error, match="verify_chain: " + message):
        flat.call(sk.verify_chain, **{**GOOD, **change})


@pytest.mark.parametrize("change, message", IN_TENSORS)
def test_wrong_values_in_tensors(verify, op_backend, change, message):
    if backends.BACKENDS[op_backend].device != "cpu" or op_backend.startswith("cuda-on-cpu"):
        pytest.skip("values on a device are not looked at")
    with pytest.raises(ValueError, match="verify_chain: " + message):
        verify(**{**GOOD, **change})


def test_defaults_of_typical(verify):
    rule_checks.defaults_of_typical(verify)


@pytest.mark.one_backend
def test_defaults_and_a_single_alpha(sweep):
    """alpha=None gives the table's defaults. Where a rule has two parameters, a single number sets the first."""
    args = cases.chain(19, 40, 2, 50, dirty=False, kinds=["near"])
    for name, rule in TABLE.items():
        default = tuple(parameter.default for parameter in rule.parameters)
        if not default:
            continue
        a = sweep(**args, rule=name)
        b = sweep(**args, rule=name, alpha=default if len(default) == 2 else default[0])
        c = sweep(**args, rule=torch.full((40,), rule.code), alpha=torch.full((1,), default[0]))
        assert torch.equal(a.tokens, b.tokens) and torch.equal(a.tokens, c.tokens)


@pytest.mark.parametrize(
    "name, other, message",
    [
        ("method", 3, r"method must be 0 \(token\), 1 \(block\) or 2 \(race\), got 3"),
        ("rule", None, "alpha needs a rule, got none"),
        ("rule", torch.zeros(3, dtype=torch.int64), r"rule must have shape \[2\] or \[1\], got \[3\]"),
        ("alpha", torch.zeros(2, 3), r"alpha must have shape \[2\] or \[2, 2\] or \[2, 2, 1\], got \[2, 3\]"),
        ("alpha", torch.zeros(2).double(), "alpha must be float32, got float64"),
    ],
)
def test_the_op_checks_again(name, other, message):
    _, (op, args, _) = surface.recorded_call(
        "verify_chain", sk.verify_chain, **GOOD, rule=torch.tensor([1, 1]), alpha=torch.tensor([0.5, 0.5])
    )
    names = [argument.name for argument in op._schema.arguments]
    args = [other if name == given else x for given, x in zip(names, args, strict=True)]
    with pytest.raises(RuntimeError, match="verify_chain: " + message):
        op(*args)

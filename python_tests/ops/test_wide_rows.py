# SPDX-License-Identifier: Apache-2.0
"""Rows and temperatures at the ends of float32's range give the float64 distribution in row_stats, sample and
verification."""

import math

import numpy as np
import pytest
import torch
from support import answers as reference
from support import backends, checks, flat, rule_cases
from support.stats_checks import assert_stats

from specdec_kernels.rows import Rows

FLT_MAX, FLT_MIN = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
TEMPERATURES = [1.2e-38, 1e-20, 0.01, 1.0, 100.0, 1e30, 1e37, 1e38, FLT_MAX]


def wide_rows(V=1100):
    """Return rows whose largest and smallest logits differ by more than the largest float32. One or many entries are
    that extreme, in one chunk or several, and some rows have -inf."""
    rng = np.random.default_rng(7)
    rows = np.zeros((6, V))
    rows[0, 3], rows[0, 4] = 3e38, -3e38
    rows[1, 5], rows[1, 1060] = FLT_MAX, -FLT_MAX
    rows[2] = rng.choice([3e38, 2.9e38, -3e38, -2.9e38, 0.0], V)
    rows[3] = rng.uniform(-FLT_MAX, FLT_MAX, V)
    rows[4] = np.where(rng.random(V) < 0.5, -math.inf, rng.uniform(-3.3e38, 3.3e38, V))
    rows[5], rows[5, 1030] = -3.4e38, 3.4e38
    return torch.from_numpy(rows).float()


FILTERS = [
    {},
    {"top_k": 2},
    {"top_k": 300},
    {"top_p": 0.9},
    {"top_p": 0.1, "min_p": 1e-3},
    {"min_p": 0.5, "top_k": 40, "top_p": 0.8},
]


def some(backend, values, T):
    """Return the values that a backend tests at a temperature: all of them. Simulated CUDA kernels test two, which vary
    with the temperature; the interpreter tests one, at a third of the temperatures."""
    turn = TEMPERATURES.index(T)
    if backend in rule_cases.SLOW and backend != "reference":
        if turn % 3:
            pytest.skip("the interpreter is slow: a third of the temperatures")
        return [values[turn // 3 % len(values)]]
    return (
        values
        if backend in ("cpu", "cuda", "triton", "reference")
        else [values[turn % len(values)], values[(2 * turn + 1) % len(values)]]
    )


@pytest.mark.parametrize("T", TEMPERATURES)
def test_stats(backend, T):
    z = wide_rows()
    for filters in some(backend, FILTERS, T):
        got = assert_stats(backend, z, temperature=T, **filters)
        assert not got.isnan().any() and (got[:, 2] >= 0).all()


def drafts_of(z, T):
    """Return a draft id for each row: the id whose p is nearest to .3 in two of three rows, and the argmin in the
    third."""
    p = reference.row_stats(Rows(z, temperature=T))
    x = torch.where(z.double() >= p[:, 1:2], ((z.double() - p[:, 3:]) * p[:, :1] - p[:, 2:3]).exp(), 0.0)
    middling = (x - 0.3).abs().argmin(-1)
    return torch.where(torch.arange(len(z)) % 3 < 2, middling, z.argmin(-1))


@pytest.mark.parametrize("T", TEMPERATURES)
def test_samples_and_steps(backend, T):
    """Samples, and steps with the rows on either side, under the exact rule and under rules that sum other
    quantities."""
    z = wide_rows()
    n, V = z.shape
    u = torch.tensor([[0.05, 0.3, 0.93]], dtype=torch.float64).expand(n, 3)
    for replacement in (True, False):
        got, want = (
            backends.run("sample", b, z, k=3, replacement=replacement, temperature=T, uniforms=u)
            for b in (backend, "reference")
        )
        clear = want.margin > 1
        assert torch.equal(got.tokens[clear], want.tokens[clear]) and clear.sum() >= 2
        assert torch.equal(got.logprobs[clear] == -math.inf, want.logprobs[clear].float() == -math.inf)
        assert not got.logprobs.isnan().any()
    d = drafts_of(z, T)
    for rule, alpha in some(
        backend, [("opt_log", 0.4), ("exact", None), ("diff_log", 0.1), ("lossy", 0.3), ("token_v3", 0.2)], T
    ):
        args = {"target_logits": z[:, None].expand(n, 2, V), "draft_tokens": d[:, None],
                "draft_logits": z.roll(1, 0)[:, None], "temperature": T, "draft_temperature": T, "rule": rule,
                "alpha": alpha, "uniforms": u[:, :2]}  # fmt: skip
        out, ref = backends.run("verify_chain", backend, **args), flat.call(reference.verify_chain, **args)
        checks.assert_same_tokens(out, ref, f"{rule} at T = {T}")
        assert not out.logprobs.isnan().any()
    tree = torch.tensor([[-1, 0]]).expand(n, 2), torch.stack([d * 0 - 1, d], 1)
    for method in some(backend, ["kseq", "recursive", "traversal", "target_only"], T):
        args = {"tree": tree, "target_logits": z[:, None].expand(n, 2, V),
                "draft_logits": z.roll(1, 0)[:, None].expand(n, 2, V), "method": method, "temperature": T,
                "draft_temperature": T, "uniforms": u}  # fmt: skip
        out, ref = backends.run("verify_tree", backend, **args), flat.call(reference.verify_tree, **args)
        checks.assert_same_tokens(out, ref, f"{method} at T = {T}")
        assert not out.logprobs.isnan().any()


@pytest.mark.parametrize("at", [0, 1])
def test_what_lies_far_below_weighs_nothing(backend, at):
    """u = 0 draws the first id with mass. An id whose p underflows even in float64 has no mass."""
    z = torch.full((1, 40), -3e38)
    z[0, 20 + at] = 3e38
    for T in (1e-3, 1.0, 1e30):
        out = backends.run(
            "sample", backend, z, k=2, replacement=False, temperature=T, uniforms=torch.zeros(1, 2, dtype=torch.float64)
        )
        assert out.tokens.tolist() == [[20 + at, 0]], "once it is drawn, the others are all that is left"
        assert (
            out.logprobs[0, 0] == 0
            and out.logprobs[0, 1] == torch.tensor((-3e38 - 3e38) / T, dtype=torch.float64).float()
        )
    out = backends.run(
        "sample", backend, z * 0 + torch.arange(40.0) * 1000, uniforms=torch.zeros(1, 1, dtype=torch.float64)
    )
    assert out.tokens.tolist() == [[39]]


ZEROS = [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0], [-0.0, 0.0, -1.0], [-1.0, -0.0, 0.0]]


@pytest.mark.parametrize("V", [8, 1100])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 1.0},
        {"top_k": 700, "top_p": 0.5},
    ],
)
def test_both_zeros_are_one_logit(backend, params, V):
    """-0 and +0 are the same logit, also as cutoff and maximum, in any order. Scale, cutoff and maximum have the same
    bits on every backend."""
    rng = np.random.default_rng(V)
    rows = [np.resize(zeros, V) for zeros in ZEROS] + [rng.choice([-0.0, 0.0], V), rng.choice([-0.0, 0.0, -3.0], V)]
    rows.append(np.where(np.arange(V) == V - 1, math.nan, -0.0))  # invalid
    z = torch.from_numpy(np.array(rows)).float()
    got, want = (backends.run("row_stats", b, z, **params).float() for b in (backend, "reference"))
    for column in (0, 1, 3):
        assert torch.equal(
            got[:, column].contiguous().view(torch.int32), want[:, column].contiguous().view(torch.int32)
        ), column
    assert not torch.signbit(got[:, 3]).any()


@pytest.mark.parametrize(
    "T, greedy", [(0.0, True), (1e-45, True), (1e-38, True), (1.17e-38, True), (FLT_MIN, False), (1.18e-38, False)]
)
def test_subnormal_temperatures_are_greedy(backend, T, greedy):
    """A subnormal temperature counts as greedy, as a number or in a tensor. The smallest normal one has a finite
    scale."""
    z = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    u = torch.tensor([[0.0, 0.9]], dtype=torch.float64)
    for t in (T, torch.tensor([T])):
        stats = backends.run("row_stats", backend, z, temperature=t, top_p=0.9, min_p=0.1)
        assert stats[0].tolist() == (
            [math.inf, 3.0, 1.0, 3.0]
            if greedy
            else [float(np.float32(1 / np.float32(T))), 3.0, pytest.approx(math.log(2)), 3.0]
        )
        out = backends.run("sample", backend, z, temperature=t, k=2, uniforms=u)
        assert out.tokens.tolist() == ([[1, 1]] if greedy else [[1, 2]])
        out = backends.run(
            "verify_chain", backend, z.expand(1, 2, 4), torch.tensor([[2]]), None, temperature=t, uniforms=u
        )
        assert out.tokens.tolist() == ([[1, -1]] if greedy else [[2, 2]])
        out = backends.run("verify_tree", backend, (torch.tensor([[-1, 0]]), torch.tensor([[-1, 2]])),
                           z.expand(1, 2, 4), method="recursive", temperature=t,
                           uniforms=torch.tensor([[0.0, 0.0, 0.9]], dtype=torch.float64))  # fmt: skip
        assert out.tokens.tolist() == ([[1, -1]] if greedy else [[2, 2]])
    if greedy and backend != "reference":  # greedy, so no random numbers are needed
        assert backends.run("sample", backend, z, temperature=T).tokens.tolist() == [[1]]
        assert backends.run(
            "verify_chain", backend, z.expand(1, 2, 4), torch.tensor([[1]]), None, temperature=T
        ).tokens.tolist() == [[1, 1]]

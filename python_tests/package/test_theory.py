# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import Rows, theory

GOLDEN = {  # best gamma at c = .01, .05, .1, .2
    0.5: (5, 3, 2, 1),
    0.6: (7, 4, 3, 2),
    0.7: (9, 6, 4, 3),
    0.8: (14, 8, 6, 4),
    0.9: (24, 13, 10, 7),
}


@pytest.mark.parametrize("alpha", GOLDEN)
def test_best_gamma_golden_table(alpha):
    assert tuple(theory.best_gamma(alpha, c) for c in (0.01, 0.05, 0.1, 0.2)) == GOLDEN[alpha]


def test_golden_numbers():
    assert theory.expected_tokens(0.8, 5) == pytest.approx(3.68928, abs=1e-12)
    assert theory.walltime_factor(0.8, 5, 0.05) == pytest.approx(2.951424, abs=1e-12)
    assert theory.operations_factor(0.8, 5, 0.05) == pytest.approx(1.694097, abs=5e-7)


# ((alpha, c) of the draft model, (alpha, c) of its own drafter, (best factor, gamma) without that drafter, (best
# factor, both gammas) with it)
HIERARCHIES = [
    ((0.9, 0.1), (0.8, 0.002), (3.430947, 10), (5.880037, 17, 11)),
    ((0.8, 0.05), (0.7, 0.002), (3.092080, None), (3.807480, 11, 6)),
    ((0.8, 0.2), (0.8, 0.01), (1.867556, None), (2.864280, 7, 8)),
]


@pytest.mark.parametrize("outer, inner, alone, together", HIERARCHIES)
def test_hierarchical_factor_golden(outer, inner, alone, together):
    """The golden pair of lengths is the best of those below 40 and below 30."""
    (alpha, c), (inner_alpha, inner_c) = outer, inner
    gamma = theory.best_gamma(alpha, c)
    assert theory.walltime_factor(alpha, gamma, c) == pytest.approx(alone[0], abs=5e-7)
    assert alone[1] in (None, gamma)
    found = {
        (g, i): theory.hierarchical_factor(alpha, g, c, inner_alpha, i, inner_c)
        for g in range(1, 40)
        for i in range(30)
    }
    assert max(found, key=found.get) == together[1:]
    assert found[together[1:]] == pytest.approx(together[0], abs=5e-7)
    for g in (1, 5):  # an inner drafter that drafts nothing changes nothing
        assert found[g, 0] == pytest.approx(theory.walltime_factor(alpha, g, c), abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.3, 0.77, 0.95, 0.999999, 1.0])
@pytest.mark.parametrize("c", [0.0, 0.02, 0.3, 1.0, 2.5])
def test_best_gamma_is_the_argmax(alpha, c):
    factors = [theory.walltime_factor(alpha, g, c) for g in range(41)]
    best = theory.best_gamma(alpha, c, max_gamma=40)
    assert factors[best] >= max(factors) - 1e-12
    assert (best > 0) == theory.improves(alpha, c)
    if theory.improves(alpha, c):
        assert factors[best] >= (1 + alpha) / (1 + c) - 1e-12


def test_edges():
    assert theory.expected_tokens(1.0, 7) == 8
    assert theory.expected_tokens(0.0, 7) == 1
    assert theory.expected_tokens(0.5, 0) == 1
    assert theory.expected_tokens(1 - 1e-12, 7) == pytest.approx(8, abs=1e-9)
    assert theory.walltime_factor(0.9, 4, 0.0) == theory.expected_tokens(0.9, 4)
    assert theory.best_gamma(0.5, 0.0, max_gamma=12) == 12
    assert theory.best_gamma(1.0, 0.5, max_gamma=12) == 12
    assert theory.best_gamma(1.0, 1.0) == 0
    assert theory.best_gamma(0.9, 0.1, max_gamma=0) == 0
    assert not theory.improves(0.2, 0.2)


@pytest.mark.parametrize("alpha,gamma", [(0.3, 2), (0.8, 5), (0.95, 8)])
def test_expected_tokens_by_simulation(alpha, gamma):
    n = 200_000
    accepted = np.random.default_rng(0).random((n, gamma)) < alpha
    emitted = accepted.cumprod(axis=1).sum(axis=1) + 1
    assert abs(emitted.mean() - theory.expected_tokens(alpha, gamma)) < 5 * emitted.std() / math.sqrt(n)


def test_views_are_refused():
    z = torch.zeros(2, 5)
    ids = torch.zeros(2, 1, dtype=torch.int32)
    for field, view in (
        ("penalties", sk.Penalties(1.3, ids=ids, counts=ids)),
        ("bias", sk.Bias(ids, torch.zeros(2, 1))),
        ("allowed", sk.Allowed(ids + 1)),
    ):
        with pytest.raises(
            ValueError, match=rf"^acceptance_rate_from_logits: target\.{field} must be None, got {type(view).__name__}$"
        ):
            theory.acceptance_rate_from_logits(sk.Rows(z, **{field: view}), z)


def test_acceptance_rate_by_simulation():
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(6), 2)
    x, u = rng.choice(6, size=200_000, p=q), rng.random(200_000)
    rate = theory.acceptance_rate(torch.from_numpy(p), torch.from_numpy(q)).item()
    assert 0.2 < rate < 0.95
    assert abs((u * q[x] < p[x]).mean() - rate) < 0.006
    assert rate == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-14)  # 1 - D_LK


def test_acceptance_rate_of_rows_ids_and_other_widths():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    assert theory.acceptance_rate(p, q).item() == pytest.approx(0.7, abs=1e-7)
    assert theory.acceptance_rate(p.expand(2, 3), torch.tensor([1, 7])).tolist() == pytest.approx([0.3, 0.0])
    assert theory.acceptance_rate(p, torch.tensor([0.9, 0.1])).item() == pytest.approx(0.6, abs=1e-7)
    assert theory.acceptance_rate(p, torch.tensor([0.0, 0.1, 0.1, 0.8])).item() == pytest.approx(0.2, abs=1e-7)


def test_acceptance_rate_from_logits():
    z = torch.tensor([[5.0, 3.0, 2.0]]).log()
    y = torch.tensor([[2.0, 5.0, 3.0]]).log()
    assert theory.acceptance_rate_from_logits(z, y).item() == pytest.approx(0.7, abs=1e-7)
    top2 = torch.tensor([[1.0, z[0, 1], math.log((5 + 3) / 5), z[0, 0]]])  # p = (.625, .375, 0)
    assert theory.acceptance_rate_from_logits(Rows(z, stats=top2), y).item() == pytest.approx(0.575, abs=1e-6)
    assert theory.acceptance_rate_from_logits(Rows(z, top_k=2), y).item() == pytest.approx(0.575, abs=1e-6)
    assert theory.acceptance_rate_from_logits(z, torch.tensor([[math.nan, 0.0, 0.0]])).isnan().all()
    for wrong in (torch.ones(2), -1.0):
        with pytest.raises(ValueError, match="acceptance_rate_from_logits: target.temperature must "):
            theory.acceptance_rate_from_logits(Rows(z, temperature=wrong), y)


def test_errors_name_argument_wanted_and_got():
    with pytest.raises(ValueError, match=r"alpha_for_tokens: tokens must lie in \[1, gamma \+ 1\] .* got 6.5, 5"):
        theory.alpha_for_tokens(6.5, 5)
    with pytest.raises(ValueError, match=r"expected_tokens: alpha must lie in \[0, 1\], got 1.5"):
        theory.expected_tokens(1.5, 3)
    with pytest.raises(ValueError, match="alpha must lie"):
        theory.expected_tokens(math.nan, 3)
    with pytest.raises(ValueError, match="walltime_factor: gamma must be an integer >= 0, got -1"):
        theory.walltime_factor(0.5, -1, 0.1)
    with pytest.raises(ValueError, match="hierarchical_factor: c must be above 0"):
        theory.hierarchical_factor(0.5, 1, 0.0, 0.5, 1, 0.1)
    with pytest.raises(ValueError, match=r"hierarchical_factor \(inner\): alpha must lie in \[0, 1\], got 2"):
        theory.hierarchical_factor(0.5, 1, 0.1, 2, 1, 0.1)
    with pytest.raises(ValueError, match="walltime_factor: c must be a finite number >= 0, got -0.1"):
        theory.walltime_factor(0.5, 1, -0.1)
    with pytest.raises(ValueError, match="best_gamma: max_gamma must be an integer >= 0, got 2.5"):
        theory.best_gamma(0.5, 0.1, max_gamma=2.5)
    p = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match=r"acceptance_rate: q must have leading shape \[2\], got \[3\]"):
        theory.acceptance_rate(p, torch.full((3, 4), 0.25))
    with pytest.raises(TypeError, match="acceptance_rate: p must be a floating-point tensor, got torch.int64"):
        theory.acceptance_rate(torch.ones(2, 4, dtype=torch.int64), p)
    with pytest.raises(ValueError, match=r"draft.logits must have shape \[N=2, Vq\], got \[3, 4\]"):
        theory.acceptance_rate_from_logits(p, torch.zeros(3, 4))


@pytest.mark.parametrize("gamma", [1, 2, 5, 16])
def test_the_rate_for_so_many_tokens(gamma):
    """alpha_for_tokens is the inverse of expected_tokens, also at alpha 0 and 1. With one draft the number of tokens is
    1 + alpha."""
    for alpha in (0.0, 1e-6, 0.25, 0.6, 0.9, 1 - 1e-9, 1.0):
        found = theory.alpha_for_tokens(theory.expected_tokens(alpha, gamma), gamma)
        assert found == pytest.approx(alpha, abs=4e-16 * (gamma + 1))  # roundings of the sum divided by its slope, >= 1
    assert theory.alpha_for_tokens(1.25, 1) == pytest.approx(0.25, abs=4e-16)

# SPDX-License-Identifier: Apache-2.0
"""residual: the distribution (p - q)+ and its mass, against the reference, by hand and at degenerate rows."""

import math

import pytest
import torch
from support import backends, cases
from support.checks import assert_floats

NAN, INF = math.nan, math.inf


def prob_rows(seed, N, V, Vq=None, dtype=torch.float32):
    p, q = cases.rows_pair(seed, N, V, Vq)
    return p.softmax(-1).to(dtype), q.softmax(-1).to(dtype)


def torch_residual(p, q):
    """Return torch's plain float32 result, whose error bounds the op's."""
    size = min(p.shape[-1], q.shape[-1])
    w = p.float().clone()
    w[:, :size] = (w[:, :size] - q.float()[:, :size]).clamp(min=0)
    return w / w.sum(-1, keepdim=True), w.sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("V, Vq", [(1, 1), (3, 3), (33, 20), (33, 50), (1024, 1024), (1025, 1025), (4099, 4099)])
def test_agrees_with_the_reference(backend, V, Vq, dtype):
    """V is 1, 3 as in test_golden, 33 with narrower and wider drafts, 1024 (a chunk), 1025, and 4099 (a prime)."""
    p, q = prob_rows(3, 28, V, Vq, dtype)
    probs, mass = backends.run("residual", backend, p, q)
    want, want_mass = backends.run("residual", "reference", p, q)
    assert probs.dtype == torch.float32 or backend == "reference"
    assert probs.shape == (28, V) and mass.dtype == torch.float64
    naive, naive_mass = torch_residual(p, q)
    fine = want_mass > 0
    error = (naive[fine].double() - want[fine]).abs().max().item() if fine.any() else 0.0
    assert_floats(probs, want, error, "probs")
    assert_floats(mass, want_mass, (naive_mass.double() - want_mass).abs().max().item(), "mass")
    assert torch.allclose(probs.double().sum(-1), torch.ones(28, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_hot_ids(backend, dtype):
    p = torch.tensor([[0.5, 0.3, 0.2]] * 5)
    probs, mass = backends.run("residual", backend, p, torch.tensor([0, 2, -1, 3, -7], dtype=dtype))
    whole = [0.5, 0.3, 0.2]
    assert torch.allclose(probs.float(), torch.tensor([[0, 0.6, 0.4], [0.625, 0.375, 0], whole, whole, whole]))
    assert torch.allclose(mass, torch.tensor([0.5, 0.8, 1, 1, 1], dtype=torch.float64))


def test_golden(backend):
    probs, mass = backends.run("residual", backend, torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]]))
    assert probs.tolist() == [[1, 0, 0]]
    assert mass.item() == pytest.approx(0.3, abs=1e-7)


def test_mass_is_one_minus_beta(backend):
    from specdec_kernels.theory import acceptance_rate

    p, q = prob_rows(4, 30, 50)
    _, mass = backends.run("residual", backend, p, q)
    assert torch.allclose(mass, 1 - acceptance_rate(p, q), atol=1e-6)


@pytest.mark.parametrize("q", [[NAN, 0.0, 0.0], [-0.5, 0.0, 0.0], [INF, 0.0, 0.0], [1.1, 0.0, 0.0]])
def test_what_is_no_probability_counts_zero(backend, q):
    probs, mass = backends.run("residual", backend, torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([q]))
    assert torch.allclose(probs.float(), torch.tensor([[0.5, 0.3, 0.2]]))
    assert mass.item() == pytest.approx(1, abs=1e-6)


def test_a_rounded_one_counts_as_one(backend):
    probs, _ = backends.run("residual", backend, torch.tensor([[1.0, 0.0005]]), torch.tensor([[1.0005, 0.0]]))
    assert torch.allclose(probs.float(), torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize(
    "p, q, want",
    [
        ([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]),  # empty residual: p
        ([0.5, 0.5, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.0]),
        # an invalid row gives its largest finite entry, and mass NaN
        ([NAN, 0.3, 0.1], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
        ([-1.0, 0.3, 0.1], [0.0, 0.0, 0.0], [0.0, 0.75, 0.25]),
        ([0.0, 0.0, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]),  # no mass at all
        ([NAN, NAN, NAN], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]),
        ([0.1, INF, 0.4], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]),
        ([0.6, -INF, 0.4], [0.2, 0.3, 0.3], [0.8, 0.0, 0.2]),  # negative entries, even -inf, count as 0
        ([-INF, -INF, -INF], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]),
    ],
)
def test_degenerate_rows_leave_the_others_alone(backend, p, q, want):
    good = torch.tensor([[0.5, 0.3, 0.2]])
    rows_p, rows_q = (
        torch.cat([good, torch.tensor([p]), good]),
        torch.cat([good.roll(1), torch.tensor([q]), good.roll(1)]),
    )
    probs, mass = backends.run("residual", backend, rows_p, rows_q)
    assert torch.allclose(probs[1].float(), torch.tensor(want), atol=1e-6)
    assert mass[1].isnan() == (not all(x < INF for x in p))
    alone = backends.run("residual", backend, good, good.roll(1))
    for i in (0, 2):
        assert torch.equal(probs[i], alone[0][0]) and mass[i] == alone[1][0]


def test_one_hot_that_leaves_nothing(backend):
    probs, mass = backends.run("residual", backend, torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert probs.tolist() == [[0, 1]] and mass.item() == 0


@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_one_hot_hides_no_invalid_entry(backend, bad):
    """A one-hot draft subtracts exactly the invalid entry; the row is still invalid."""
    p = torch.tensor([[0.25, bad, 0.75], [0.25, 0.0, 0.75]])
    probs, mass = backends.run("residual", backend, p, torch.tensor([1, 1]))
    assert mass[0].isnan() and mass[1] == 1 and probs.tolist() == [[0, 0, 1], [0.25, 0, 0.75]]


def test_strided_rows_and_empty_batches(backend):
    p, q = prob_rows(5, 14, 37)
    want = backends.run("residual", backend, p, q)
    got = backends.run("residual", backend, cases.strided(p), cases.strided(q, 7))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    probs, mass = backends.run("residual", backend, p[:0], q[:0])
    assert probs.shape == (0, 37) and mass.shape == (0,)


def test_bad_arguments(op_backend):
    residual = backends.call("residual", op_backend)
    p = torch.rand(3, 4)
    with pytest.raises(ValueError, match=r"residual: q must have shape \[N=3, Vq=4\], got \[2, 4\]"):
        residual(p, p[:2])
    with pytest.raises(ValueError, match=r"residual: q must have shape \[N=3\], got \[2\]"):
        residual(p, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"residual: p must have shape \[N, V\], got \[4\]"):
        residual(p[0], p)
    with pytest.raises(ValueError, match="residual: p must be .*got float64"):
        residual(p.double(), p)

# SPDX-License-Identifier: Apache-2.0
"""accept: the test of one draft token, u * q < p, by hand and against the reference."""

import math

import pytest
import torch
from support import backends

ALMOST_ONE = 1 - 2.0**-53
NAN, INF = math.nan, math.inf


def f64(*x):
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(
    "p, q, u, want",
    [
        (0.3, 0.5, 0.59, True),
        (0.3, 0.5, 0.61, False),
        (0.5, 0.5, ALMOST_ONE, True),  # p == q: always accepted
        (0.5, 0.25, ALMOST_ONE, True),
        (0.0, 0.5, 0.0, False),  # the test is strict
        (1e-45, 0.5, 0.0, True),
        (0.5, 0.0, 0.0, False),  # q = 0: not drawn from q
        (0.5, -0.1, 0.0, False),
        (0.5, NAN, 0.0, False),
        (0.5, INF, 0.0, False),
        (0.5, 1.1, 0.0, False),
        (NAN, 0.5, 0.0, False),
        (-0.1, 0.5, 0.0, False),
        (1.0, 1.0, ALMOST_ONE, True),
        (1.0, 1.0009, ALMOST_ONE, True),  # a rounded 1 counts as 1
        (0.5, 1.0009, 0.49999, True),
        (0.5, 1.0009, 0.50001, False),
    ],
)
def test_rule(backend, p, q, u, want):
    for dtype in (torch.float32, torch.float64):
        got = backends.run("accept", backend, torch.tensor([p], dtype=dtype), torch.tensor([q], dtype=dtype), f64(u))
        assert got.tolist() == [want]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(0,), (7,), (33, 5), (2, 3, 4)])
def test_agrees_with_the_reference(backend, dtype, shape):
    """Results equal the reference's without an exempt band, since the comparison is exact in float64."""
    rng = torch.Generator().manual_seed(1)
    p, q, u = (torch.rand(shape, generator=rng, dtype=torch.float64) for _ in range(3))
    p, q = p.to(dtype), q.to(dtype)
    got = backends.run("accept", backend, p, q, u)
    assert got.dtype == torch.bool and got.shape == shape
    assert torch.equal(got, backends.run("accept", "reference", p, q, u))
    if got.numel() > 30:
        assert 0.2 < got.float().mean() < 0.98


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_one_hot_ids(backend, dtype):
    p, u = torch.tensor([0.3, 0.3, 0.3]), f64(0.29, 0.31, 0.0)
    assert backends.run("accept", backend, p, torch.tensor([4, 4, -1], dtype=dtype), u).tolist() == [True, False, False]


@pytest.mark.one_backend
def test_edges_by_quadrature(backend):
    """With stratified u, the accepted share is min(1, p / q) to within 1/n."""
    n = 4096
    u = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    for p, q in [(0.1, 0.4), (0.35, 0.36), (0.2, 0.1), (1e-3, 0.9)]:
        share = backends.run("accept", backend, torch.full((n,), p), torch.full((n,), q), u).double().mean().item()
        assert abs(share - min(1, p / q)) <= 1 / n + 1e-6


def test_strided_inputs(backend):
    p, q, u = torch.rand(6, 4), torch.rand(6, 4), torch.rand(6, 4, dtype=torch.float64)
    got = backends.run("accept", backend, p.T, q.T, u.T)
    assert torch.equal(got, backends.run("accept", backend, p, q, u).T)


def test_bad_arguments(op_backend):
    accept = backends.call("accept", op_backend)
    p, u = torch.rand(3), torch.rand(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="accept: u must be float64, got float32"):
        accept(p, p, p)
    with pytest.raises(ValueError, match="accept: p must be .*got int64"):
        accept(torch.ones(3, dtype=torch.int64), p, u)
    with pytest.raises(ValueError, match=r"accept: q must have shape \[3\], got \[2\]"):
        accept(p, p[:2], u)
    with pytest.raises(TypeError, match="accept: q must be a torch.Tensor, got float"):
        accept(p, 0.5, u)

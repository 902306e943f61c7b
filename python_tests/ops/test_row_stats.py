# SPDX-License-Identifier: Apache-2.0
"""row_stats: a row's scale, cutoff, log_norm and maximum, under every filter, against the reference and by hand."""

import math
import re

import numpy as np
import pytest
import torch
from support import backends, cases
from support.backends import scale
from support.checks import ln
from support.stats_checks import assert_stats, kept

from specdec_kernels.rows import Rows

FLT_MAX = torch.finfo(torch.float32).max
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# 1: a single id; 5: fewer than a vector holds; 257: a multiple of a vector and one more; 1025: a chunk and one more;
# 4099: prime, several chunks
WIDTHS = [1, 5, 33, 257, 1024, 1025, 4099]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", WIDTHS)
def test_no_filter(backend, V, dtype):
    z, _ = cases.rows_pair(1, scale(35, backend), V, dtype=dtype)
    assert_stats(backend, z)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", WIDTHS)
def test_every_mixture_of_parameters(backend, V, dtype):
    n = scale(70, backend)
    z, _ = cases.rows_pair(2, n, V, dtype=dtype)
    assert_stats(backend, z, **cases.parameters(3, n))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7},
        {"temperature": 1e-3},
        {"temperature": 100.0},
        {"temperature": 0},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 256},
        {"top_k": 10**9},
        {"top_k": -1},
        {"top_k": 0},
        {"top_p": 0.9},
        {"top_p": 1e-6},
        {"top_p": 0.99},
        {"top_p": 1.0},
        {"min_p": 0.1},
        {"min_p": 1.0},
        {"min_p": 1e-6},
        {"top_n_sigma": 1.0},
        {"top_n_sigma": 0.3, "temperature": 0.5},
        {"top_n_sigma": FLT_MAX},
        {"min_p": 0.02, "top_k": 30, "top_p": 0.8, "temperature": 1.7},
        {"top_n_sigma": 1.5, "min_p": 0.02, "top_k": 30, "top_p": 0.8, "temperature": 1.7},
    ],
)
def test_numbers_for_all_rows(backend, params):
    n = scale(70, backend, least=7)
    z, _ = cases.rows_pair(4, n, 257)
    got = assert_stats(backend, z, **params)
    same = {k: torch.full((n,), v, dtype=torch.int32 if k == "top_k" else torch.float32) for k, v in params.items()}
    assert torch.equal(backends.run("row_stats", backend, z, **same), got)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_ties_at_the_cutoff_all_stay(backend, levels):
    """Few distinct logits, so that every cutoff falls among ties, all of which stay. log_norm shows the kept set."""
    rng = torch.Generator().manual_seed(levels)
    n = scale(200, backend)
    z = torch.randint(0, levels, (n, 300), generator=rng).float() - 1.5
    assert_stats(backend, z, top_k=torch.randint(1, 300, (n,), generator=rng))
    assert_stats(backend, z, top_p=torch.rand(n, generator=rng).clamp(min=0.01))
    assert_stats(backend, z, **cases.parameters(5, n))


def test_min_p_cutoff_is_rounded_once(backend):
    """max + T ln(min_p) cancels here. In float32 the cutoff would be five ulp too high, and the last token would be
    lost."""
    assert_stats(backend, torch.tensor([[3.904296875, 0.0, -0.2403564453125]]), temperature=0.3, min_p=1e-6)


def test_top_k_of_what_min_p_left(backend):
    """k runs from 1 to V. Once it reaches the number of tokens that min-p or top-n-sigma keeps, top-k removes
    nothing."""
    z, _ = cases.rows_pair(12, scale(60, backend, least=6), 23, kinds=["dirichlet", "near", "zeros"])
    for k in range(1, 24, 1 if scale(23, backend) == 23 else 4):
        assert_stats(backend, z, temperature=0.7, top_k=k, min_p=0.02)
        assert_stats(backend, z, top_k=k, min_p=0.2, top_p=0.8)
        assert_stats(backend, z, top_k=k, top_n_sigma=0.7, top_p=0.8)


@pytest.mark.parametrize("k", [1, 2, 3, 100, 999, 1000])
def test_top_k_is_the_kth_largest(backend, k):
    """The kept entries equal those of torch.topk, on rows with -inf entries and both signs of zero."""
    rng = torch.Generator().manual_seed(k)
    z = torch.randn(scale(20, backend, least=8), 1000, generator=rng).round(decimals=2)
    z[:, 100] = -0.0
    z[:5, 200:990] = -math.inf
    got = backends.run("row_stats", backend, z, top_k=k)
    assert torch.equal(kept(z, got), (z >= z.topk(k).values[:, -1:]) & (z > -math.inf))


def test_golden(backend):
    z = ln(5.0, 3.0, 2.0)[None]

    def probs(**params):
        scale, cutoff, log_norm, top = backends.run("row_stats", backend, z, **params)[0].double()
        return torch.where(z >= cutoff, ((z.double() - top) * scale - log_norm).exp(), 0.0)[0].tolist()

    assert probs() == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    assert probs(temperature=0.5) == pytest.approx([25 / 38, 9 / 38, 4 / 38], abs=1e-6)
    assert probs(top_k=2) == pytest.approx([0.625, 0.375, 0], abs=1e-6)
    assert probs(top_p=0.6) == pytest.approx([0.625, 0.375, 0], abs=1e-6)
    assert probs(min_p=0.5) == pytest.approx([0.625, 0.375, 0], abs=1e-6)
    assert backends.run("row_stats", backend, z)[0, 2].item() == pytest.approx(math.log(2), abs=1e-6)


def test_order_of_the_filters(backend):
    """Filters apply in this order: top-n-sigma and min-p, then top-k, then top-p to what is left. With p = (.4, .3, .2,
    .1), top-k 3 leaves (.444, .333, .222), of which top-p .75 keeps two. On the whole row it would keep three."""
    z = ln(0.4, 0.3, 0.2, 0.1)[None]
    assert backends.run("row_stats", backend, z, top_k=3, top_p=0.75)[0, 1] == z[0, 1]
    assert backends.run("row_stats", backend, z, top_p=0.75)[0, 1] == z[0, 2]
    assert backends.run("row_stats", backend, z, min_p=0.7, top_p=0.5)[0, 1] == z[0, 0]
    # sigma is .521; n = 1 leaves (.571, .429), of which top-p .55 keeps one. On the whole row it would keep two.
    assert backends.run("row_stats", backend, z, top_n_sigma=1, top_p=0.55)[0, 1] == z[0, 0]
    assert backends.run("row_stats", backend, z, top_p=0.55)[0, 1] == z[0, 1]


def test_greedy(backend):
    z = torch.tensor([[1.0, 4.0, 4.0, -math.inf], [-math.inf, -1.0, -3.0, -2.0]])
    got = backends.run("row_stats", backend, z, temperature=0, top_k=3, top_p=0.1, top_n_sigma=0.5)
    assert got.tolist() == [[math.inf, 4.0, 1.0, 4.0], [math.inf, -1.0, 1.0, -1.0]]


@pytest.mark.parametrize("V", [1, 9, 1025])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_invalid_rows(backend, V, temperature):
    bad = cases.bad_rows(V)
    z = torch.stack([row for row, _ in bad] + [torch.zeros(V)])
    got = backends.run("row_stats", backend, z, temperature=temperature)
    assert got[:-1, 2].isnan().all() and not got[-1].isnan().any()
    finite = torch.where(z.isfinite(), z, -math.inf).amax(-1)
    assert torch.equal(got[:, 3].double(), finite.double())
    assert torch.equal(got[-1], backends.run("row_stats", backend, z[-1:], temperature=temperature)[0])


@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 2, "min_p": 0.1}, {"top_n_sigma": 1.0}])
def test_extreme_values(backend, params):
    """The largest floats, subnormals, a range that overflows when subtracted, 1/T up to 1e4."""
    rows = [
        [FLT_MAX, -FLT_MAX, 0.0],
        [-FLT_MAX, -FLT_MAX, -FLT_MAX],
        [1e-45, -1e-45, 0.0],
        [88.0, -88.0, 87.9],
        [-math.inf, -FLT_MAX, -math.inf],
    ]
    for temperature in (1e-4, 1.0, 1e4):
        got = backends.run("row_stats", backend, torch.tensor(rows), temperature=temperature, **params)
        want = backends.run("row_stats", "reference", torch.tensor(rows), temperature=temperature, **params)
        assert torch.allclose(got.double()[:, [0, 2, 3]], want[:, [0, 2, 3]], rtol=1e-6, atol=1e-6)
        assert torch.equal(kept(torch.tensor(rows), got), kept(torch.tensor(rows), want))


def test_strided_expanded_and_empty(backend):
    z, _ = cases.rows_pair(6, 42, 131)
    params = cases.parameters(7, 42)
    want = backends.run("row_stats", backend, z, **params)
    assert torch.equal(backends.run("row_stats", backend, cases.strided(z), **params), want)
    every_second = torch.stack([z, z.roll(1, 0)], 1)[:, 0]
    assert torch.equal(backends.run("row_stats", backend, every_second, **params), want)
    assert torch.equal(
        backends.run("row_stats", backend, z[:1].expand(9, -1)), backends.run("row_stats", backend, z[:1]).expand(9, 4)
    )
    assert backends.run("row_stats", backend, z[:0]).shape == (0, 4)


def test_rows_do_not_depend_on_the_batch(backend):
    n = scale(64, backend)
    z, _ = cases.rows_pair(8, n, 2500)
    params = cases.parameters(9, n)
    want = backends.run("row_stats", backend, z, **params)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    shuffled = backends.run("row_stats", backend, z[order], **{k: v[order] for k, v in params.items()})
    assert torch.equal(
        shuffled.view(torch.int32) if backend != "reference" else shuffled,
        want[order].view(torch.int32) if backend != "reference" else want[order],
    )
    for i in range(0, n, 7):
        alone = backends.run("row_stats", backend, z[i : i + 1], **{k: v[i : i + 1] for k, v in params.items()})
        assert np.array_equal(alone[0].numpy(), want[i].numpy(), equal_nan=True)


def test_wide_vocabulary(backend):
    """V = 151,936 (30,384 in the interpreter) in bf16: many ties, top-p over a long tail."""
    rng = torch.Generator().manual_seed(2)
    V = 151_936 if backend != "triton-interpret" else 30_384
    z = (2.5 * torch.randn(6, V, generator=rng)).bfloat16()
    params = {
        "temperature": torch.tensor([1.0, 0.7, 1.0, 1.0, 1.3, 0.0]),
        "top_k": torch.tensor([0, 50, 0, V // 8, 0, 0]),
        "top_p": torch.tensor([1.0, 0.95, 0.9, 0.999, 1.0, 1.0]),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.0, 0.05, 0.0]),
        "top_n_sigma": torch.tensor([0.0, 1.0, 2.5, 0.0, 3.0, 1.0]),
    }
    assert_stats(backend, z, **params)


@pytest.mark.parametrize("params", [{"top_p": 0.5}, {"top_k": 9000}, {"top_k": 15_000, "top_p": 0.3}])
def test_broad_rows(backend, params):
    """More logits near the cutoff than a kernel can hold at once: no ties, mostly ties, all ties. In the last three
    rows, the entries that the CUDA kernel samples (id % 1024 < 256, id % 8 == 0) lie far above the others, far below
    them, or close together away from the cutoff."""
    V = 40_960
    z = torch.randn(6, V, generator=torch.Generator().manual_seed(4))
    z[1] = z[1].round()
    z[2] = 1.5
    ids = torch.arange(V)
    sampled = (ids % 1024 < 256) & (ids % 8 == 0)
    z[3, sampled] += 4
    z[4, sampled] -= 4
    z[5, sampled] = 0.9 + 0.01 * z[5, sampled]
    assert_stats(backend, z, **params)


def test_bad_arguments(op_backend):
    row_stats = backends.call("row_stats", op_backend)
    z = torch.randn(3, 5)
    with pytest.raises(ValueError, match="row_stats: rows.logits must be float32, bfloat16 or float16, got float64"):
        row_stats(z.double())
    with pytest.raises(ValueError, match=r"row_stats: rows.logits must have shape \[N, V\], got \[5\]"):
        row_stats(z[0])
    with pytest.raises(ValueError, match="row_stats: rows.temperature must be .*got -1"):
        row_stats(Rows(z, temperature=-1.0))
    with pytest.raises(ValueError, match="row_stats: rows.temperature must be .*got nan"):
        row_stats(Rows(z, temperature=math.nan))
    for top_p in (0.0, 1.5, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"row_stats: rows.top_p must be in \(0, 1\], got"):
            row_stats(Rows(z, top_p=top_p))
    with pytest.raises(ValueError, match=r"row_stats: rows.min_p must be in \[0, 1\], got 2"):
        row_stats(Rows(z, min_p=2))
    for n in (-0.5, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"row_stats: rows.top_n_sigma must be finite in float32 and >= 0, got"):
            row_stats(Rows(z, top_n_sigma=n))
    with pytest.raises(ValueError, match="row_stats: rows.top_k must be .*got -2"):
        row_stats(Rows(z, top_k=-2))
    with pytest.raises(TypeError, match="row_stats: rows.top_k must be"):
        row_stats(Rows(z, top_k=2.5))
    with pytest.raises(ValueError, match=r"row_stats: rows.temperature must have shape \[3\] or \[1\], got \[4\]"):
        row_stats(Rows(z, temperature=torch.ones(4)))
    with pytest.raises(ValueError, match="row_stats: rows.logits must be contiguous in its last dimension"):
        row_stats(torch.randn(5, 3).T)


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("top_n_sigma", -0.5),
        ("top_n_sigma", math.inf),
        ("top_n_sigma", math.nan),
    ],
)
def test_bad_values_in_tensors(op_backend, name, value):
    """Invalid values in tensors raise on the CPU. On a GPU an error would need synchronisation, so the row becomes
    invalid and its neighbours stay valid."""
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    try:
        got = backends.run("row_stats", op_backend, z, **{name: torch.tensor([1.0, value, 1.0])})
    except ValueError as caught:
        assert backends.BACKENDS[op_backend].device == "cpu"
        assert re.match(f"row_stats: rows.{name} must be .*got .* at index 1", str(caught))
        return
    assert op_backend != "cpu", "nothing was raised"
    want = backends.run("row_stats", op_backend, z, **{name: 1.0})
    assert torch.equal(got[[0, 2]], want[[0, 2]])
    assert got[1, 2].isnan() and got[1, 3] == z[1].max()

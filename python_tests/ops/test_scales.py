# SPDX-License-Identifier: Apache-2.0
"""Ops agree with the float64 reference at many scales: temperatures of .01 to 100, gaps of 50 to 300, float32, bfloat16
and float16. The instruction sets share the cells (support/scale_cases.py). The cases are random; SPECDEC_SEED selects
others."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import answers as reference
from support import backends, kseq_rho_laws, scale_cases, scale_checks
from support.scale_checks import METHODS, V, agree, count, rng_of, share

from specdec_kernels.reference.banded.band import EPS
from specdec_kernels.rows import Rows


@pytest.mark.parametrize("replacement", [False, True])
def test_sample(isa_backend, replacement):
    scale_checks.sample(isa_backend, replacement)


@pytest.mark.slow_in_triton
@pytest.mark.parametrize("method", METHODS)
def test_trees(isa_backend, method):
    scale_checks.trees(isa_backend, method)


@pytest.mark.parametrize("method", ["token", "block"])
def test_chains(isa_backend, method):
    """Chains; requests take the rules in turn."""
    for cell in share(isa_backend):
        rng = rng_of(method, cell)
        agree(
            "verify_chain", isa_backend, scale_cases.chain(rng, count(72, isa_backend), V, cell, method), (method, cell)
        )


def test_pairs(isa_backend):
    """row_stats, row_gap and kseq_rho."""
    for cell in share(isa_backend):
        p, q = scale_cases.rows(rng_of("pairs", cell), count(48, isa_backend), V, cell)
        stats = [backends.run("row_stats", isa_backend, z, temperature=cell.T) for z in (p, q)]
        for z, s in zip((p, q), stats):
            want = reference.row_stats(Rows(z, temperature=cell.T))
            assert torch.equal(s[:, [0, 1, 3]].double(), want[:, [0, 1, 3]])
            assert (s[:, 2] - want[:, 2]).abs().max() <= EPS * (16 + 3 * math.log(V)), cell
        k = torch.tensor([1, 2, 8, 64]).repeat(len(p))[: len(p)]
        sides = Rows(p, stats=stats[0]), Rows(q, stats=stats[1])
        out = backends.run("kseq_rho", isa_backend, *sides, k)
        laws = [kseq_rho_laws.laws_of_logits(z, s) for z, s in zip((p, q), stats)]
        kseq_rho_laws.judge(*laws, k.double(), type(out)(*[x.double() for x in out]), kseq_rho_laws.LEFT)
        got = backends.run("row_gap", isa_backend, *sides).double()
        want = reference.row_gap(*sides)
        off = (
            EPS * (64 + 3 * math.log(V)) + 2 * EPS * 50
        )  # a weight e^-x is off by 2 x EPS times itself, and x e^-x <= 1 / e
        assert ((got - want).abs() <= off * (1 + want.abs())).all(), cell


def test_the_least_exponent(isa_backend):
    scale_checks.the_least_exponent(isa_backend)


def test_residual(isa_backend):
    """Rows with probabilities down to e^-100, near the smallest float32."""
    rng = rng_of("residual")
    x = np.exp(-rng.uniform(0, 100, (64, V)) * (rng.random((64, V)) < 0.8))
    p, q = (
        torch.tensor(y / y.sum(-1, keepdims=True)).float() for y in (x, x[:, ::-1] * rng.uniform(0.9, 1.1, (64, V)))
    )
    probs, mass = backends.run("residual", isa_backend, p, q)
    want, total = reference.residual(p, q)
    assert torch.allclose(mass.double(), total, rtol=V * EPS * 2, atol=0)
    assert torch.allclose(probs.double(), want, rtol=V * EPS * 4, atol=2.0**-149)


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_any_two_properties_of_a_cell_occur_together(monkeypatch, sets):
    """Every pair of values of two of temperature, gap, dtype and instruction set occurs, on a CPU with one, two or
    three instruction sets."""
    monkeypatch.setattr(scale_cases, "THOROUGH", False)
    isas = ("base", "avx2", "avx512")[:sets]
    there = SimpleNamespace(ISAS=isas, BACKENDS={})
    cells = [(*cell, isa) for isa in isas for cell in scale_cases.share_of(f"cpu-{isa}", there)]
    values = scale_cases.TEMPERATURES, scale_cases.GAPS, scale_cases.DTYPES, isas
    for a, b in itertools.combinations(range(4), 2):
        assert {(cell[a], cell[b]) for cell in cells} == set(itertools.product(values[a], values[b]))

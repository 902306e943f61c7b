# SPDX-License-Identifier: Apache-2.0
"""Filters that keep too many entries to sort, on every instruction set. Rows are flat, or have few distinct values, few
finite entries, or adjacent floats."""

import math

import numpy as np
import pytest
import torch
from support import backends, tiers
from support.stats_checks import assert_stats


def width(backend):
    return 9001 if backends.BACKENDS[backend].slower > 1 else 60_001 if tiers.TIER == "all" else 20_001


def rows(V):
    rng = np.random.default_rng(11)
    z = np.zeros((8, V))
    z[0] = rng.standard_normal(V)
    z[1] = np.round(2 * rng.standard_normal(V))  # thousands of ties on every level
    z[2] = np.where(rng.random(V) < 0.5, 1.0, np.nextafter(np.float32(1), np.float32(2)))
    z[3] = np.where(rng.random(V) < 0.5, 0.0, -0.0)
    z[3, :5] = 1.0
    z[4] = -math.inf
    # a sample at equal steps along the row seldom hits these finite entries
    z[4, 1 : V // 3 : 2] = rng.standard_normal(len(z[4, 1 : V // 3 : 2]))
    z[5] = rng.standard_normal(V) * 2.0 ** rng.integers(-60, 6, V)
    z[6] = -30.0  # many ties below a few larger entries
    z[6, rng.integers(0, V, 40)] = rng.standard_normal(40)
    z[7] = np.linspace(-4, 4, V)  # sorted by id
    return torch.from_numpy(z).float()


FILTERS = [
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 3.0},
    {"top_p": 0.999, "temperature": 0.3},
    {"top_k": 200},
    {"top_k": 3000},
    {"top_k": 40_000},
    {"top_k": 4000, "min_p": 0.5},
    {"top_k": 2000, "top_p": 0.8},
    {"top_p": 0.99, "min_p": 1e-3},
]


@pytest.mark.one_backend
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_broad_rows(isa_backend, dtype, filters):
    assert_stats(isa_backend, rows(width(isa_backend)).to(dtype), **filters)


@pytest.mark.one_backend
@pytest.mark.parametrize("k", [1, 63, 64, 65, 1000, 1024, 1025, 5000, 60_000])
def test_top_k_is_the_kth_largest(isa_backend, k):
    """top-k keeps exactly the entries >= the k-th largest. Depending on k, kernels first bound the cutoff by the maxima
    of chunks or lanes, or guess it from a sample of the row."""
    V = width(isa_backend)
    z = rows(V)
    stats = backends.run("row_stats", isa_backend, z, top_k=k)
    want = z.sort(1, descending=True).values[:, min(k, V) - 1 :][:, :1]
    assert torch.equal((z >= stats[:, 1:2]) & z.isfinite(), (z >= want) & z.isfinite())


def test_lanes_that_tie(op_backend):
    """40 large entries above many ties, so more lanes reach the bound of top-k than a block can gather. All threads of
    the block must then take the same branch. Kills: resetting the count before every thread has read it."""
    z = rows(9001)[6:7]
    stats = backends.run("row_stats", op_backend, z, top_k=64)
    want = z.sort(1, descending=True).values[:, 63:64]
    assert torch.equal(z >= stats[:, 1:2], z >= want)

# SPDX-License-Identifier: Apache-2.0
"""Mutants that filter a row wrongly, on the CPU, in CUDA and in Triton."""

import math

import torch
from support import cases
from support.stats_checks import assert_stats

FILTERS, SIMD, TRITON_RULE = "core/filters.h", "cpu/simd_filters.h", "core/filters.py"


def top_n_sigma(backend):
    """Check short rows, of which some entries are -inf: one entry more or less changes sigma by percents."""
    z, _ = cases.rows_pair(21, 60, 9, kinds=["near", "peaked"])
    z[torch.rand(z.shape, generator=torch.Generator().manual_seed(3)) < 0.3] = -math.inf
    z[:, 4] = 0.0
    for n in (0.5, 1.0, 1.5, 2.0):
        assert_stats(backend, z, top_n_sigma=n)


VARIANCE = "variance = squares / count - mean * mean;"
OF_A_SAMPLE = VARIANCE, "variance = (squares / count - mean * mean) * count / (count - 1);"
NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "sigma divided by n - 1": (["avx2", "cuda"], [(FILTERS, *OF_A_SAMPLE)], top_n_sigma),
    "sigma divided by all entries": (
        ["avx2"],
        [(SIMD, "count += __builtin_popcount(bits_of(finite));", "count += W;")],
        top_n_sigma,
    ),
    "sigma divided by all entries, in CUDA": (
        ["cuda"],
        [(FILTERS, "if (z == -HUGE_VALF) return;", "if (z == -HUGE_VALF) return void(++count);")],
        top_n_sigma,
    ),
}

SQUARES = "squares / n - mean * mean"
TRITON = {  # name: (file, its text, the mutant's text, the test that fails)
    "sigma divided by n - 1": (TRITON_RULE, SQUARES, f"({SQUARES}) * n / tl.maximum(n - 1, 1.0)", top_n_sigma),
    "sigma divided by all entries": (
        TRITON_RULE,
        "count += tl.sum(finite.to(tl.int32), 1)",
        "count += tl.sum((z < 3e38).to(tl.int32), 1)",
        top_n_sigma,
    ),
}

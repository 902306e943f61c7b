# SPDX-License-Identifier: Apache-2.0
"""kseq_rho's CUDA sources with one error: name -> (file, its text, the mutant's text)."""

SEARCH, SUMS = "ops/kseq_rho/kseq_rho.h", "cuda/pair_sums.cuh"

SOURCE_MUTANTS = {
    "no guard": (SEARCH, "kGuard = 4 * 0x1p-24", "kGuard = 0"),
    "the lower end": (SEARCH, "found = bracket.hi", "found = bracket.lo"),
    "one draft less": (SEARCH, "power(rejected(x), k)", "power(rejected(x), k - 1)"),
    "stops early": (SEARCH, "kTight = 0x1p-21", "kTight = 0x1p-8"),
    "p and q swapped": (SUMS, "fmaf(-t[m], y[e], x[e])", "fmaf(-t[m], x[e], y[e])"),
    "float32 totals": (
        "cuda/pair_search.cuh",
        "sums[0] += x[e], sums[1] += y[e]",
        "sums[0] = float(sums[0] + x[e]), sums[1] = float(sums[1] + y[e])",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""Mutants that lose the little mass left in a peaked row after draws, on the CPU, in CUDA and in Triton."""

from support import scale_checks

DRAFTS, SIMD, CPU = "ops/verify_tree/draft_dists.h", "cpu/simd.h", "cpu/row_executor.cpp"

FACTOR = (
    "    return {stats.log_norm == stats.log_norm, stats.log_norm, stats.max};",
    "    left.share = float(exp(double(stats.log_norm) + (double(stats.max) - q.stats.max) * stats.scale "
    "- q.stats.log_norm));\n"
    "    left.any = left.share > 0;\n    return left;",
)

NO_LEAST = "    if (z > cutoff) least = z;\n", ""


def trees(backend):
    scale_checks.trees(backend, "recursive_without_replacement")


def sample(backend):
    scale_checks.sample(backend, False)


NATIVE = {  # name: (backends, [(file, its text, the mutant's text)], the test that fails)
    "a floor of 2^-126": (
        ["base", "avx2"],
        [(SIMD, "y = max_f(splat(-127.0f), y);", "y = max_f(splat(-126.0f), y);"), (SIMD, *NO_LEAST)],
        scale_checks.the_least_exponent,
    ),
    "subnormal weights": (["avx512"], [(SIMD, *NO_LEAST)], scale_checks.the_least_exponent),
    "what is left as a float32 factor": (["base", "cuda"], [(DRAFTS, *FACTOR)], trees),
    "sums that are never measured anew": (
        ["avx2"],
        [(CPU, "  if (total >= kEnough) return p;", "  if (total > 0) return p;")],
        sample,
    ),
    "sums that are never measured anew, in CUDA": (
        ["cuda"],
        [("ops/sample/draws.cuh", "    if (total >= kEnough) return p;", "    if (total > 0) return p;")],
        sample,
    ),
}

TRITON = {
    "what is left in units of the row": (
        "tree/reduce.py",
        "                log_norm = tl.where(adding, new_norm, log_norm)\n"
        "                most = tl.where(adding, new_most, most)",
        "                log_norm = tl.where(adding, new_norm + (new_most - q.stats.max) * q.stats.scale, log_norm)",
        trees,
    ),
    "sums that are never measured anew": ("sample.py", "(total < measured * ENOUGH)", "(total < 0)", sample),
    "subnormal weights": (
        "core/row.py",
        "tl.where(y < LEAST_EXPONENT, 0.0, tl.exp2(y))",
        "tl.exp2(y)",
        scale_checks.the_least_exponent,
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""The main cases, whose kernels bench.kernel_times and bench.counters measure on a GPU."""

from __future__ import annotations

import importlib

from bench.harness import Case

LABELS = [
    ("verify_chain", "B=1 V=151936 bf16 stats T=.7"),
    ("verify_chain", "B=64 V=151936 bf16 stats T=.7"),
    ("verify_chain", "B=64 V=151936 bf16 stats T=.7 top_k=50 top_p=.9"),
    ("row_stats", "N=384 V=151936 bf16"),
    ("sample", "N=64 V=151936 bf16 k=1"),
    ("kseq_rho", "N=1 V=151936 bf16 k=4"),
    ("verify_tree", "B=1 V=151936 bf16 K=4 L=4 recursive"),
    ("verify_tree", "B=1 V=151936 bf16 K=4 L=4 traversal"),
    ("verify_tree", "B=64 V=151936 bf16 K=4 L=4 target_only"),
]


def case(op: str, label: str) -> Case:
    return next(case for case in importlib.import_module(f"bench.{op}").cases("cuda") if case.label == label)

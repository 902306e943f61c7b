# SPDX-License-Identifier: Apache-2.0
"""``pytest bench``: the cases of ``python -m bench.run`` with pytest-benchmark."""

import importlib

import pytest
import torch

from bench.run import OPS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [
    pytest.param(case, id=f"{op} {case.label}")
    for op in OPS
    for case in importlib.import_module(f"bench.{op}").cases(DEVICE)
]


@pytest.mark.parametrize("case", CASES)
def test_bench(benchmark, case):
    work = case.build()

    def run():
        work.ours(work.inputs)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    benchmark.extra_info["bytes"] = work.bytes
    benchmark(run)

# SPDX-License-Identifier: Apache-2.0
"""Every mutant of the sources in these modules fails the test that is named beside it.

Scale mutants lose the probability that remains once a row's likely tokens are removed; the tests at every scale find
them. Penalty mutants penalise a row wrongly; a comparison with rows that were penalised beforehand finds them. Filter
mutants keep other entries than the float64 reference. Sparse mutants add up wrong entries of a draft by id. Race
mutants have wrong noise, keys or rows. The last mutants implement the wrong rules of docs/wrong_rules.md. Compiling
takes about a minute for each native mutant.
"""

import functools
import os

import pytest
from support import (
    backends,
    filter_mutants,
    race_mutants,
    scale_mutants,
    sparse_mutants,
    view_mutants,
    wrong_rule_mutants,
)
from support.mutant_packages import caught_by, cpu_package, package

from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate

MODULES = scale_mutants, view_mutants, filter_mutants, sparse_mutants, race_mutants, wrong_rule_mutants
NATIVE = {name: mutant for module in MODULES for name, mutant in module.NATIVE.items()}
TRITON = [item for module in MODULES for item in module.TRITON.items()]


def fails(name, environment, test, slower=1):
    backends.BACKENDS[name] = backends.Backend(environment, slower=slower)
    with caught_by(AssertionError, ChildProcessError):  # a mutant whose process dies counts as caught
        test(name)
    if name in backends._workers:
        backends._workers.pop(name).process.terminate()


@pytest.mark.thorough
@pytest.mark.parametrize("name, mutant", TRITON, ids=[name for name, _ in TRITON])
def test_triton_mutant_is_caught(name, mutant):
    pytest.importorskip("triton")
    *change, test = mutant
    fails(
        f"mutant: {name}",
        {"SPECDEC_BACKEND": "triton", "TRITON_INTERPRET": "1", "PYTHONPATH": str(package(*change))},
        test,
        slower=4,
    )


@pytest.mark.skipif(os.environ.get("SPECDEC_THOROUGH") != "1", reason="a minute of compiling each: SPECDEC_THOROUGH=1")
@pytest.mark.parametrize("name, where", [(name, where) for name, (places, *_) in NATIVE.items() for where in places])
def test_native_mutant_is_caught(name, where, monkeypatch):
    _, changes, test = NATIVE[name]
    if where != "cuda" and where not in backends.ISAS:
        pytest.skip(f"this CPU has no {where}")
    csrc = functools.reduce(lambda tree, change: mutate(tree, *change), changes, CSRC)
    if where == "cuda":
        environment = {"SPECDEC_BACKEND": "cpu", "SPECDEC_CUDA_ON_CPU": "fast", "SPECDEC_CSRC": str(csrc)}
    else:
        environment = {
            "SPECDEC_BACKEND": "cpu",
            "SPECDEC_ISA": where,
            "PYTHONPATH": str(cpu_package(csrc, monkeypatch)),
        }
    fails(f"mutant: {name} {where}", environment, test, slower=4 if where == "cuda" else 1)

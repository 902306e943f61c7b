# SPDX-License-Identifier: Apache-2.0
"""Sources that lose what is left of a peaked row are caught by the tests of laws at every scale: on the CPU and in CUDA
where SPECDEC_THOROUGH=1 (a minute of compiling each), in Triton always."""

import functools
import os

import pytest
from support import backends
from support.mutant_packages import cpu_package, package
from support.scale_mutants import NATIVE, TRITON

from tools.cuda_on_cpu.build import CSRC
from tools.cuda_on_cpu.mutants import mutate


def fails(name, environment, test, slower=1):
    backends.BACKENDS[name] = backends.Backend(environment, slower=slower)
    with pytest.raises(AssertionError):
        test(name)
    backends._workers.pop(name).process.terminate()


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRITON)
def test_triton_mutant_is_caught(name):
    pytest.importorskip("triton")
    *change, test = TRITON[name]
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

# SPDX-License-Identifier: Apache-2.0
"""Static gates: checks of the kernels' machine code, without a GPU. CUDA C++ kernels are checked for every architecture
that was built, Triton kernels for some of their targets (gates/triton_kernels.py). The tables go to
build/gates/kernels.md; `-s` prints them. Kernels that must be refused show that the gates can fail."""

import json
import os
import shutil
import subprocess
import sys
import warnings

import pytest
from gates import machine_code, rules
from gates.machine_code import Kernel
from gates.triton_kernels import operations
from support.paths import PYTHONPATH, TESTS

from specdec_kernels import backends
from specdec_kernels.backends import dispatch
from tools.machine_code.disassembly import cuobjdump

NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")

needs_cuobjdump = pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside nvcc or in a triton package")


def problems(kernels):
    return [problem for kernel in kernels for problem in rules.broken(kernel)]


@needs_cuobjdump
@pytest.mark.skipif(not backends._CUDA_LIBRARY.exists(), reason="_C_cuda.so was not built")
@pytest.mark.slow
def test_cuda_kernels():
    kernels = machine_code.nvidia(backends._CUDA_LIBRARY)
    print("\n" + rules.write("CUDA C++", kernels))
    if any(arch.endswith("+PTX") for arch in backends.cuda_archs()):
        assert any(kernel.blocks > 1 for kernel in kernels), "the launch bounds were not found in the PTX"
    else:
        warnings.warn("no PTX in _C_cuda.so, so no launch bounds to check", stacklevel=1)
    archs = {"sm_" + arch.removesuffix("+PTX").replace(".", "") for arch in backends.cuda_archs()}
    for op in dispatch.ops():
        assert {k.arch for k in kernels if k.name.startswith(op + "::")} == archs, op
    assert problems(kernels) == []


@needs_cuobjdump
@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.slow
def test_bad_cuda_kernels_are_refused(tmp_path):
    binary = tmp_path / "spill.fatbin"
    code = ["-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
    subprocess.run(
        [NVCC, "-std=c++17", "-O3", *code, "-fatbin", TESTS / "gates" / "spill.cu", "-o", binary], check=True
    )
    found = {
        name: [k for k in machine_code.nvidia(binary) if name in k.name]
        for name in ("spills", "stack", "narrowly", "passes")
    }
    assert all(len(kernels) == 1 for kernels in found.values())
    assert all(kernel.blocks == 4 and kernel.threads == 256 for [kernel] in found.values())
    for name, words in [
        ("spills", "local loads and stores"),
        ("stack", "bytes of stack"),
        ("narrowly", "no 16-byte load"),
    ]:
        assert any(words in problem for problem in problems(found[name])), name
    assert problems(found["passes"]) == []


def triton_kernels(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment.setdefault("TRITON_CACHE_DIR", str(rules.PAGE.parent / "triton"))
    environment["PYTHONPATH"] = PYTHONPATH
    command = [sys.executable, "-m", "gates.triton_kernels", *arguments]
    result = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kernels = [Kernel(*json.loads(line)) for line in result.stdout.splitlines()]
    return [kernel._replace(loads={int(bits): n for bits, n in kernel.loads.items()}) for kernel in kernels]


@pytest.mark.thorough
@pytest.mark.slow
def test_every_triton_kernel_is_well_typed():
    """The interpreter accepts code that the compiler refuses."""
    pytest.importorskip("triton")
    assert operations()


@needs_cuobjdump
@pytest.mark.thorough
def test_triton_kernels():
    pytest.importorskip("triton")
    kernels = triton_kernels()
    print("\n" + rules.write("Triton", kernels))
    assert {k.arch for k in kernels} == {"sm_80", "sm_90", "sm_100", "sm_120", "gfx942"}
    assert problems(kernels) == []


@needs_cuobjdump
@pytest.mark.thorough
def test_a_bad_triton_kernel_is_refused():
    pytest.importorskip("triton")
    kernels = triton_kernels("--spill")
    assert len(kernels) == 5
    for kernel in kernels:
        found = " ".join(problems([kernel]))
        assert "bytes of stack" in found and "local loads and stores" in found


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        (dict(stack=8), "8 bytes of stack"),
        (dict(name="verify_tree_by_id::walk_trees", stack=8), "8 bytes of stack"),
        (dict(local=1), "1 local loads and stores"),
        (dict(early=1), "1 registers read too early"),
        (dict(loads={64: 9, 32: 1}), "no 16-byte load"),
        (dict(loads={32: 1}, reads_rows=False), None),
        (dict(registers=65), "65 registers, 64 for 4 blocks of 256 threads"),
        (dict(registers=65, blocks=3), None),
        (dict(shared=60_000), "60000 bytes of shared memory, 57344 for 4 blocks"),
    ],
    ids=str,
)
def test_rules(change, message):
    kernel = Kernel("scan", "sm_90", 64, 0, 0, 1024, {128: 4, 32: 2}, 3, blocks=4)
    found = problems([kernel._replace(**change)])
    assert found == [] if message is None else len(found) == 1 and message in found[0]

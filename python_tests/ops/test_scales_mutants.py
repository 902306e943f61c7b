# SPDX-License-Identifier: Apache-2.0
"""Sources that lose what is left of a peaked row are caught by the tests of laws at every scale: on the CPU and in CUDA
where SPECDEC_THOROUGH=1 (a minute of compiling each), in Triton always."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import test_scales
from support import backends
from support.rule_mutants import PACKAGE, package

from tools.cuda_on_cpu.build import CSRC, ROOT
from tools.cuda_on_cpu.mutants import mutate
from tools.mutate import places

DRAFTS, SIMD, CPU = "ops/verify_tree/draft_dists.h", "cpu/simd.h", "cpu/row_executor.cpp"

FACTOR = (
    "    return {stats.log_norm == stats.log_norm, stats.log_norm, stats.max};",
    "    left.share = float(exp(double(stats.log_norm) + (double(stats.max) - q.stats.max) * stats.scale "
    "- q.stats.log_norm));\n"
    "    left.any = left.share > 0;\n    return left;",
)
NO_LEAST = "    if (z > cutoff) least = z;\n", ""


def trees(backend):
    test_scales.test_trees(backend, "recursive_without_replacement")


def sample(backend):
    test_scales.test_sample(backend, False)


NATIVE = {  # name: (backends, [(file, what it says, what the mutant says)], the test that fails)
    "a floor of 2^-126": (
        ["base", "avx2"],
        [(SIMD, "y = max_f(splat(-127.0f), y);", "y = max_f(splat(-126.0f), y);"), (SIMD, *NO_LEAST)],
        test_scales.test_the_least_exponent,
    ),
    "subnormal weights": (["avx512"], [(SIMD, *NO_LEAST)], test_scales.test_the_least_exponent),
    "what is left as a float32 factor": (["base", "cuda"], [(DRAFTS, *FACTOR)], trees),
    "sums that are never measured anew": (
        ["avx2"],
        [(CPU, "  if (total >= kEnough) return p;", "  if (total > 0) return p;")],
        sample,
    ),
    "sums that are never measured anew, in CUDA": (
        ["cuda"],
        [("ops/sample/sample_cuda.cu", "    if (total >= kEnough) return p;", "    if (total > 0) return p;")],
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
        test_scales.test_the_least_exponent,
    ),
}


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


def cpu_package(csrc, monkeypatch):
    """Where PYTHONPATH finds the package with the CPU's library made from other sources; the rest of it are links."""
    import ninja

    from build_tools import ninja_file

    folder = Path(csrc) / "build"
    monkeypatch.setattr(ninja_file, "CSRC", Path(csrc))
    shutil.rmtree(folder / PACKAGE.name, ignore_errors=True)
    shutil.copytree(
        PACKAGE, folder / PACKAGE.name, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    page = ninja_file.ninja_file({"_C": folder / PACKAGE.name / "_C.so"}, None)
    (folder / "build.ninja").write_text(page)
    subprocess.run([Path(ninja.BIN_DIR) / "ninja", "-C", folder], check=True, capture_output=True)
    return folder


def test_every_mutant_finds_its_line():
    lines = [(name, file, old) for name, (_, changes, _) in NATIVE.items() for file, old, _ in changes]
    assert {name for name, file, old in lines if len(places((CSRC / file).read_text(), old)) != 1} == set()
    assert {
        name
        for name, (file, old, *_) in TRITON.items()
        if len(places((ROOT / "specdec_kernels/triton" / file).read_text(), old)) != 1
    } == set()

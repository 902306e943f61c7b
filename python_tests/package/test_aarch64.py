# SPDX-License-Identifier: Apache-2.0
"""The CPU ops cross-compiled for aarch64. Under qemu's user mode their core computes the same bits as x86-64's base
instruction set, and a wheel can be built. No torch for aarch64 is needed."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile

import pytest
from support.paths import ROOT, TESTS

from build_tools.cross import COMPILERS
from build_tools.ninja_file import CXX, ROUNDED, WARNINGS, isas
from specdec_kernels import backends

HERE, CROSS, QEMU = CXX, COMPILERS["aarch64"], "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"  # where Debian's cross compiler has them
SOURCES = [
    TESTS / "gates" / "core_bits.cpp",
    *(p for p in sorted((ROOT / "csrc/cpu").glob("*.cpp")) if p.stem not in ("shards", "pick_isa")),
]
FUSED = "-ffp-contract=fast"
# Files in which a fused multiply-add changes results. In the others products are exact, or only choose where a search
# begins.
FUSIBLE = [
    "simd_kernels",
    *(pytest.param(x, marks=pytest.mark.thorough) for x in ("row_stats", "row_measures", "views")),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="compares aarch64 with x86-64, on x86-64"),
    pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"no {CROSS} (Debian: g++-aarch64-linux-gnu)"),
]
needs_qemu = pytest.mark.skipif(shutil.which(QEMU) is None, reason=f"no {QEMU} (Debian: qemu-user)")


def compiled(compiler, machine, source, folder, *flags):
    """Compile a source as the build does for a machine, at its base instruction set. Return the object file."""
    isa = ["-DSPECDEC_ISA=base", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
    chosen = [*isa, *isas(machine)["base"].split()] if source.stem == "simd_kernels" else ROUNDED.split()
    folders = [f"-I{ROOT / 'csrc'}", "-isystem", TESTS / "gates" / "no_torch"]
    path = folder / f"{source.stem}.o"
    command = [compiler, "-std=c++20", "-O3", *WARNINGS.split(), *chosen, *flags, *folders, "-c", source, "-o", path]
    subprocess.run(command, check=True)
    return path


def linked(compiler, objects, path):
    subprocess.run([compiler, *objects, "-o", path], check=True)
    return path


def printed(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def on_qemu(program, *arguments):
    return printed(QEMU, "-L", LIBRARIES, program, *arguments)


def different(expected, got):
    assert len(expected) == len(got)
    return [f"x86-64:  {x}\naarch64: {y}" for x, y in zip(expected, got) if x != y]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("x86_64")
    objects = [compiled(HERE, "x86_64", source, folder) for source in SOURCES]
    return linked(HERE, objects, folder / "core_bits")


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aarch64")
    return {source: compiled(CROSS, "aarch64", source, folder) for source in SOURCES}


@needs_qemu
def test_the_core_computes_the_same_bits(program, objects, tmp_path):
    expected = printed(program)
    assert not different(expected, on_qemu(linked(CROSS, objects.values(), tmp_path / "core_bits")))[:5]

    # The lines show acceptances and rejections, draws, and residuals with and without mass.
    found = {}
    for line in expected:
        name, values = line.split(": ")
        found.setdefault(name.split()[0], []).append(values.split())
    accepted = [values[-1] == "1" for values in found["accept"]]
    assert 0.2 < sum(accepted) / len(accepted) < 0.8
    assert {values[0] for values in found["verify_chain"]} == {"0", "1", "2"}
    assert len({values[0] for values in found["sample"]}) > 50
    masses = {values[0] for values in found["residual"]}
    assert len(masses) > 200 and {"0" * 16, "nan"} < masses
    assert len(found["row_stats"]) == 3 * 4 * 7 * 8  # dtypes, vocabularies, shapes of rows, filters


@needs_qemu
@pytest.mark.parametrize("stem", FUSIBLE)
def test_a_fused_multiply_add_is_found(program, objects, tmp_path, stem):
    """Compiles one file without the flag that keeps a * b + c two operations; results must then differ."""
    [source] = (path for path in SOURCES if path.stem == stem)
    fused = compiled(CROSS, "aarch64", source, tmp_path, FUSED)
    mutant = linked(CROSS, [*(path for key, path in objects.items() if key != source), fused], tmp_path / "mutant")
    assert different(printed(program, "float32"), on_qemu(mutant, "float32"))


@pytest.mark.thorough
def test_the_wheel(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPECDEC_", "CXX"))}
    build = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, env=environment | {"SPECDEC_CROSS": "aarch64"})
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-linux_aarch64.whl")
    with zipfile.ZipFile(wheel) as file:
        assert [name for name in file.namelist() if ".so" in name] == ["specdec_kernels/_C.so"]
        library = file.extract("specdec_kernels/_C.so", tmp_path)
    header = "\n".join(printed("aarch64-linux-gnu-readelf", "-hdW", library))
    assert "AArch64" in header and "$ORIGIN/../torch/lib" in header
    assert "[libtorch_cpu.so]" in header and "[libc10.so]" in header

    # The linker could not check the names of torch's functions, so they must be those of this machine's library.
    def of_torch(path):
        names = printed("aarch64-linux-gnu-nm", "-D", "--undefined-only", path)
        return {name.split()[-1] for name in names if "torch" in name}

    assert of_torch(library) == of_torch(backends._LIBRARY)

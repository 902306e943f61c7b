# SPDX-License-Identifier: Apache-2.0
"""The choice of compiler and architectures in a build, with fake compilers, and the contents of the built libraries."""

import os
import re
from pathlib import Path

import pytest

from build_tools import cross, nvcc
from build_tools.ninja_file import ROOT, ninja_file
from specdec_kernels import backends
from specdec_kernels.backends import dispatch

FAKE = """#!/bin/sh
case $1 in
--version) echo 'Cuda compilation tools, release {version}, V{version}.88' ;;
--list-gpu-arch) printf '%s\\n' {archs} ;;
esac
"""


def compiler(folder, version="12.4", archs="compute_75 compute_80 compute_86 compute_89 compute_90"):
    path = folder / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(FAKE.format(version=version, archs=archs))
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """Hide nvcc, and the variables that choose compilers."""
    for name in (
        "SPECDEC_CUDA",
        "SPECDEC_CUDA_IDS",
        "SPECDEC_CROSS",
        "CXX",
        "TORCH_CUDA_ARCH_LIST",
        "CUDA_HOME",
        "CUDA_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    find = nvcc.shutil.which
    absent = "/usr/local/cuda"
    monkeypatch.setattr(
        nvcc.shutil, "which", lambda name: None if name.startswith(absent) else find(name, path=os.environ["PATH"])
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_where_the_compiler_is_looked_for(monkeypatch, tmp_path):
    assert nvcc.wanted() is None
    on_path = compiler(tmp_path / "path")
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin:/usr/bin:/bin")
    assert nvcc.wanted() == (on_path, "12.4", ["7.5", "8.0", "8.6", "8.9", "9.0"])
    at_home = compiler(tmp_path / "home", "13.0", "compute_80 compute_100")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert nvcc.wanted() == (at_home, "13.0", ["8.0", "10.0"])
    for choice in ("0", "keep"):
        monkeypatch.setenv("SPECDEC_CUDA", choice)
        assert nvcc.wanted() is None


@pytest.mark.parametrize(
    "choice, message",
    [("1", "SPECDEC_CUDA=1 needs nvcc, which was not found"), ("yes", "SPECDEC_CUDA must be 0, 1 or keep, got yes")],
)
def test_a_build_that_stops(monkeypatch, choice, message):
    monkeypatch.setenv("SPECDEC_CUDA", choice)
    with pytest.raises(SystemExit, match=message):
        nvcc.wanted()


OLD = nvcc.Nvcc("nvcc", "12.4", ["8.0", "8.6", "8.9", "9.0"])
NEW = nvcc.Nvcc("nvcc", "13.0", ["8.0", "8.6", "8.9", "9.0", "10.0", "12.0"])


@pytest.mark.parametrize(
    "asked, compiler, expected",
    [
        (None, NEW, ["8.0", "9.0", "10.0", "12.0+PTX"]),
        (None, OLD, ["8.0", "9.0+PTX"]),  # architectures that it does not know are left to PTX
        ("8.0;9.0a;12.0+PTX", NEW, ["8.0", "9.0a", "12.0+PTX"]),
        ("8.0 8.6, 9.0+PTX", NEW, ["8.0", "8.6", "9.0+PTX"]),
        (" 9.0; 9.0", NEW, ["9.0"]),
    ],
)
def test_archs(monkeypatch, asked, compiler, expected):
    if asked is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    assert nvcc.archs(compiler) == expected


@pytest.mark.parametrize(
    "asked, message",
    [
        ("Hopper", "TORCH_CUDA_ARCH_LIST: an architecture must look like 9.0, 9.0a or 9.0[+]PTX, got Hopper"),
        ("8.0;sm_90", "got sm_90"),
        ("8.0;12.0", "TORCH_CUDA_ARCH_LIST: nvcc 12.4 compiles for 8.0, 8.6, 8.9, 9.0, got 12.0"),
    ],
)
def test_bad_archs(monkeypatch, asked, message):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", asked)
    with pytest.raises(SystemExit, match=message):
        nvcc.archs(OLD)


GXX = """#!/bin/sh
echo {machine}
"""


def gxx(folder, name, machine):
    """Write a fake compiler that only prints its target."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(GXX.format(machine=machine))
    (folder / name).chmod(0o755)


def test_a_cross_compiler_is_found(monkeypatch, tmp_path):
    assert cross.wanted() is None
    gxx(tmp_path, "aarch64-linux-gnu-g++", "aarch64-linux-gnu")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SPECDEC_CROSS", "aarch64")
    assert cross.wanted() == ("aarch64", f"{tmp_path}/aarch64-linux-gnu-g++")
    gxx(tmp_path, "mine", "aarch64-unknown-linux-gnu")
    monkeypatch.setenv("CXX", "mine")
    assert cross.wanted() == ("aarch64", f"{tmp_path}/mine")


@pytest.mark.parametrize(
    "set, message",
    [
        ({}, "SPECDEC_CROSS=aarch64 needs aarch64-linux-gnu-g[+][+], which was not found"),
        ({"SPECDEC_CROSS": "riscv64"}, "SPECDEC_CROSS must be aarch64, got riscv64"),
        ({"SPECDEC_CUDA": "1"}, "SPECDEC_CROSS builds CPU ops only, got SPECDEC_CUDA=1"),
        ({"CXX": "g++"}, "needs a compiler for aarch64, got CXX=g[+][+], which compiles for x86_64-linux-gnu"),
    ],
)
def test_a_cross_build_that_stops(monkeypatch, tmp_path, set, message):
    gxx(tmp_path, "g++", "x86_64-linux-gnu")
    for name, value in ({"PATH": str(tmp_path), "SPECDEC_CROSS": "aarch64"} | set).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=message):
        cross.wanted()


def test_the_page_for_aarch64():
    page = ninja_file({"_C": Path("_C.so")}, None, cross.Cross("aarch64", "arm-g++"))
    assert "avx" not in page and "nvcc" not in page and "g++" not in page.replace("arm-g++", "")
    assert "build libtorch_cpu.so: stub" in page and "build libc10.so: stub" in page
    sets = re.findall(r"^build \S+: compile .*\n  isa = (.*)", page, re.M)
    assert len(sets) > 20 and all("-ffp-contract=off" in flags for flags in sets)


def test_code_flags():
    assert nvcc.code_flags(["9.0a", "12.0+PTX"]) == (
        "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_120,code=sm_120 "
        "-gencode arch=compute_120,code=compute_120"
    )
    assert nvcc.code_flags(["8.6", "8.9+PTX", "8.0"]) == (
        "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=sm_86 "
        "-gencode arch=compute_89,code=sm_89 -gencode arch=compute_89,code=compute_89"
    )


def test_the_page_without_a_compiler_has_no_cuda():
    page = ninja_file({"_C": Path("_C.so")}, None)
    assert "verify_chain_cpu.cpp" in page and "cuda" not in page
    page = ninja_file({"_C": Path("_C.so"), "_C_cuda": Path("_C_cuda.so")}, NEW)
    assert all(f"csrc/ops/{op}/{op}_cuda.cu" in page for op in dispatch.ops())


def test_a_library_without_the_kernels_for_ids(monkeypatch):
    outputs = {"_C": Path("_C.so"), "_C_cuda": Path("_C_cuda.so")}
    whole = ninja_file(outputs, NEW)
    assert "verify_chain_by_id_cuda.cu" in whole and "SPECDEC_LEAVES_OUT_IDS" not in whole
    monkeypatch.setenv("SPECDEC_CUDA_IDS", "0")
    page = ninja_file(outputs, NEW)
    assert "_by_id_cuda.cu" not in page and "-DSPECDEC_LEAVES_OUT_IDS" in page
    assert all(f"csrc/ops/{op}/{op}_cuda.cu" in page for op in dispatch.ops())
    monkeypatch.setenv("SPECDEC_CUDA_IDS", "no")
    with pytest.raises(SystemExit, match="SPECDEC_CUDA_IDS must be 0 or 1, got no"):
        nvcc.ids()


@pytest.mark.parametrize("library", [backends._LIBRARY, backends._CUDA_LIBRARY], ids=lambda path: path.name)
def test_a_library_finds_torch_beside_it_and_names_no_folder_of_this_machine(library):
    if not library.exists():
        pytest.skip(f"{library.name} was not built")
    code = library.read_bytes()
    assert b"$ORIGIN/../torch/lib\0" in code
    assert str(ROOT).encode() + b"/" not in code and b"site-packages" not in code

# SPDX-License-Identifier: Apache-2.0
"""The whole build as one page of ninja: _C.so from the C++ files, _C_cuda.so from the CUDA files."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from build_tools import nvcc

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "csrc"

ISAS = {"base": ""}
if platform.machine() in ("x86_64", "AMD64"):
    ISAS["avx2"] = "-mavx2 -mfma -mf16c"
    ISAS["avx512"] = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512"

CXX = os.environ.get("CXX", "g++")
INCLUDES = " ".join(f"-isystem {path}" for path in include_paths())
TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"  # the stable ABI of torch 2.10
WARNINGS = "-Wall -Wextra -Wno-psabi"
# No paths of this machine inside.
NAMELESS = f"-ffile-prefix-map={ROOT}=. -ffile-prefix-map={Path(torch.__file__).parent}=torch"
# SPECDEC_SANITIZE=address,undefined: a library for `make asan`, in which what is not defined ends the process.
SANITIZE = os.environ.get("SPECDEC_SANITIZE", "")
SANITIZED = f"-fsanitize={SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer"
OPTIMISE = f"-O1 -g {SANITIZED}" if SANITIZE else "-O3"
HIDDEN = f"-fPIC -fvisibility=hidden {NAMELESS}"
LIBRARIES = f"{' '.join(f'-L{path}' for path in library_paths())} -ltorch_cpu -lc10"


def ninja_file(outputs: dict[str, Path], compiler: nvcc.Nvcc | None) -> str:
    """`outputs` names the libraries to link: _C, and _C_cuda where there is a `compiler` for it."""
    lines = cuda(outputs["_C_cuda"], compiler, nvcc.archs(compiler)) if compiler else []  # first: they take longest
    return "\n".join([*lines, *cpu(outputs["_C"])]) + "\n"


def objects(sources, extension=".o"):
    """(object, source) of each file, named by its path: ops.verify_chain.verify_chain_cpu.o"""
    for source in sorted(sources):
        yield source.relative_to(CSRC).with_suffix("").as_posix().replace("/", ".") + extension, source


def cpu(output: Path) -> list[str]:
    lines = [
        "rule compile",
        f"  command = {CXX} -std=c++20 {OPTIMISE} {WARNINGS} {HIDDEN} {TARGET} {INCLUDES} -I. $isa "
        "-MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in $isa",
        "rule link",
        f"  command = {CXX} -shared {SANITIZED if SANITIZE else '-s'} $in -o $out "
        f"-Wl,-rpath,'$$ORIGIN/../torch/lib' {LIBRARIES}",
        "  description = $out",
    ]
    linked = []
    for name, source in objects([CSRC / "schema.cpp", *CSRC.glob("cpu/*.cpp"), *CSRC.glob("ops/*/*_cpu.cpp")]):
        for isa, flags in (ISAS if source.name == "simd_kernels.cpp" else {"": ""}).items():
            linked.append(name.replace(".o", f".{isa}.o") if isa else name)
            lines.append(f"build {linked[-1]}: compile {source}")
            if source.name == "penalties.cpp":  # each operation is rounded by itself
                lines.append("  isa = -ffp-contract=off")
            if isa:
                lines.append(f"  isa = -DSPECDEC_ISA={isa} -Wno-maybe-uninitialized -Wno-uninitialized {flags}")
    return [*lines, f"build {output}: link {' '.join(linked)}"]


def cuda(output: Path, compiler: nvcc.Nvcc, archs: list[str]) -> list[str]:
    # Python finds these words in the file without loading it (backends.py); the code itself sees what follows the mark.
    mark = f"specdec_cuda {compiler.version} "
    known = f"-DSPECDEC_CUDA_ARCHS='\"{mark}{';'.join(archs)}\" + {len(mark)}'"
    host = ",".join(f"{WARNINGS} {HIDDEN}".split())
    # A fifth smaller. Every driver that runs code of nvcc 13 unpacks it; older ones need not.
    pack = "-Xfatbin -compress-all" + (" --compress-mode=size" if int(compiler.version.split(".")[0]) >= 13 else "")
    lines = [
        "rule nvcc",
        f"  command = {compiler.path} -ccbin {CXX} -std=c++20 -O3 --threads 2 -Xcompiler {host} {pack} "
        f"-DUSE_CUDA {TARGET} {known} {INCLUDES} {nvcc.code_flags(archs)} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        # torch's CUDA library is not there to link against beside a CPU-only torch; an empty one of its name serves as
        # well.
        "rule stub",
        f"  command = {CXX} -shared -nostdlib -x c++ /dev/null -Wl,-soname,$out -o $out",
        "  description = an empty $out",
        "rule link_cuda",
        f"  command = {compiler.path} -ccbin {CXX} -shared -cudart static --no-device-link $in -o $out "
        f"-Xlinker -s,--exclude-libs,ALL,--no-as-needed -Xlinker -rpath,'$$ORIGIN/../torch/lib' "
        f"-L. -ltorch_cuda {LIBRARIES}",
        "  description = $out",
        "build libtorch_cuda.so: stub",
    ]
    linked = []
    sources = objects([*CSRC.glob("ops/*/*_cuda.cu"), *CSRC.glob("cuda/*.cpp")])
    for name, source in reversed([*sources]):  # verify_*, the longest, first
        linked.append(name)
        lines.append(f"build {name}: nvcc {source}")
    return [*lines, f"build {output}: link_cuda {' '.join(linked)} | libtorch_cuda.so"]

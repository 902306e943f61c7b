# SPDX-License-Identifier: Apache-2.0
"""The text of the ninja file for the whole build: _C.so from the files for the CPU, _C_cuda.so from those for CUDA."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from build_tools import nvcc
from build_tools.cross import Cross

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "csrc"

# With this flag every operation rounds its result. Without it the compiler would use the fused multiply-add of
# aarch64's base set, which rounds a * b + c only once. x86-64's base set has none.
ROUNDED = "-ffp-contract=off"
BASE = {"base": ROUNDED}
X86_ISAS = BASE | {
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512",
}

CXX = os.environ.get("CXX", "g++")
INCLUDES = " ".join(f"-isystem {path}" for path in include_paths())
TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"  # the stable ABI of torch 2.10
WARNINGS = "-Wall -Wextra -Wno-psabi"
# Keeps paths of the build machine out of the libraries.
NAMELESS = f"-ffile-prefix-map={ROOT}=. -ffile-prefix-map={Path(torch.__file__).parent}=torch"
# SPECDEC_SANITIZE=address,undefined: a library for `make asan`, in which undefined behaviour ends the process.
SANITIZE = os.environ.get("SPECDEC_SANITIZE", "")
SANITIZED = f"-fsanitize={SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer"
OPTIMISE = f"-O1 -g {SANITIZED}" if SANITIZE else "-O3"
HIDDEN = f"-fPIC -fvisibility=hidden {NAMELESS}"
LIBRARIES = f"{' '.join(f'-L{path}' for path in library_paths())} -ltorch_cpu -lc10"
# torch's libraries for another machine are not installed here. Linking needs only their names, so empty libraries
# suffice.
STUBS = ("libtorch_cpu.so", "libc10.so")
STUB_LIBRARIES = "-Wl,--no-as-needed -L. -ltorch_cpu -lc10"

# The files that register ops for CUDA are compiled as one: reading torch's headers takes longer than all the rest.
TOGETHER = ["rule together", """  command = printf '#include "%s"\\n' $in > $out"""]


def ninja_file(outputs: dict[str, Path], compiler: nvcc.Nvcc | None, cross: Cross | None = None) -> str:
    """Return the text of the ninja file.

    outputs: the path of each library to link: _C, and _C_cuda if `compiler` is given. cross: the compiler for another
    machine, or None.
    """
    lines = cuda(outputs["_C_cuda"], compiler, nvcc.archs(compiler)) if compiler else []  # first: they take longest
    return "\n".join([*lines, *cpu(outputs["_C"], cross)]) + "\n"


def objects(sources, extension=".o"):
    """Yield (object, source) of each file. Objects are named by the path: ops.verify_chain.verify_chain_cpu.o"""
    for source in sorted(sources):
        yield source.relative_to(CSRC).with_suffix("").as_posix().replace("/", ".") + extension, source


def isas(machine: str) -> dict[str, str]:
    """Return the instruction sets that csrc/cpu/simd_kernels.cpp is compiled for, each with its flags."""
    return X86_ISAS if machine in ("x86_64", "AMD64") else BASE


def stub(compiler: str) -> list[str]:
    return [
        "rule stub",
        f"  command = {compiler} -shared -nostdlib -x c++ /dev/null -Wl,-soname,$out -o $out",
        "  description = an empty $out",
    ]


def cpu(output: Path, cross: Cross | None) -> list[str]:
    compiler = cross.compiler if cross else CXX
    lines = [
        "rule compile",
        f"  command = {compiler} -std=c++20 {OPTIMISE} {WARNINGS} {HIDDEN} {TARGET} {INCLUDES} -I. $isa "
        "-MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in $isa",
        "rule link",
        f"  command = {compiler} -shared {SANITIZED if SANITIZE else '-s'} $in -o $out "
        f"-Wl,-rpath,'$$ORIGIN/../torch/lib' {STUB_LIBRARIES if cross else LIBRARIES}",
        "  description = $out",
    ]
    if cross:
        lines += [*stub(compiler), *(f"build {name}: stub" for name in STUBS)]
    machine, linked = cross.machine if cross else platform.machine(), []
    for name, source in objects([CSRC / "schema.cpp", *CSRC.glob("cpu/*.cpp"), *CSRC.glob("ops/*/*_cpu.cpp")]):
        for isa, flags in (isas(machine) if source.name == "simd_kernels.cpp" else {"": ROUNDED}).items():
            linked.append(name.replace(".o", f".{isa}.o") if isa else name)
            lines.append(f"build {linked[-1]}: compile {source}")
            known = f"-DSPECDEC_ISA={isa} -Wno-maybe-uninitialized -Wno-uninitialized " if isa else ""
            lines.append(f"  isa = {known}{flags}")
    return [*lines, f"build {output}: link {' '.join(linked)}" + (f" | {' '.join(STUBS)}" if cross else "")]


def cuda(output: Path, compiler: nvcc.Nvcc, archs: list[str]) -> list[str]:
    # specdec_kernels/backends finds the mark and the archs in the file without loading it. C++ sees only the archs.
    mark = f"specdec_cuda {compiler.version} "
    known = f"-DSPECDEC_CUDA_ARCHS='\"{mark}{';'.join(archs)}\" + {len(mark)}'"
    without_ids = "" if nvcc.ids() else "-DSPECDEC_LEAVES_OUT_IDS"
    host = ",".join(f"{WARNINGS} {HIDDEN}".split())
    # The mode "size" makes the library a fifth smaller. Every driver that runs nvcc 13's code can unpack it; older
    # drivers may not.
    pack = "-Xfatbin -compress-all" + (" --compress-mode=size" if int(compiler.version.split(".")[0]) >= 13 else "")
    lines = [
        "rule nvcc",
        f"  command = {compiler.path} -ccbin {CXX} -std=c++20 -O3 --threads 2 -Xcompiler {host} {pack} "
        f"-DUSE_CUDA {TARGET} {known} {without_ids} {INCLUDES} {nvcc.code_flags(archs)} -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        # A CPU-only torch has no libtorch_cuda.so to link against. Linking needs only its name, so an empty one does.
        *stub(CXX),
        "rule link_cuda",
        f"  command = {compiler.path} -ccbin {CXX} -shared -cudart static --no-device-link $in -o $out "
        f"-Xlinker -s,--exclude-libs,ALL,--no-as-needed -Xlinker -rpath,'$$ORIGIN/../torch/lib' "
        f"-L. -ltorch_cuda {LIBRARIES}",
        "  description = $out",
        "build libtorch_cuda.so: stub",
    ]
    linked = []
    kernels = {*CSRC.glob("ops/*/*_cuda.cu")} - {*([] if nvcc.ids() else CSRC.glob("ops/*/*_by_id_cuda.cu"))}
    sources = objects(kernels)
    for name, source in reversed([("cuda_ops.o", "cuda_ops.cpp"), *sources]):  # verify_*, which take longest, first
        linked.append(name)
        lines.append(f"build {name}: nvcc {source}")
    registered = sorted([*CSRC.glob("cuda/*.cpp"), *CSRC.glob("ops/*/*_op_cuda.cpp")])
    lines += [*TOGETHER, f"build cuda_ops.cpp: together {' '.join(map(str, registered))}"]
    return [*lines, f"build {output}: link_cuda {' '.join(linked)} | libtorch_cuda.so"]

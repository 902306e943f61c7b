# SPDX-License-Identifier: Apache-2.0
"""The choice of nvcc and of the GPU architectures to compile for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DEFAULT_ARCHS = "8.0;9.0;10.0;12.0+PTX"  # 8.6 and 8.9 run the code of 8.0; docs/gpus.md lists all GPUs
_ARCH = re.compile(r"(\d+\.\d)([af]?)(\+PTX)?")


class Nvcc(NamedTuple):
    path: str
    version: str  # 13.0
    known: list[str]  # the architectures it compiles for: 8.0, 8.6 ...


def stop(message):
    sys.exit(f"specdec_kernels: {message}")


def wanted() -> Nvcc | None:
    """Return the compiler for the CUDA ops; None if they are not built.

    SPECDEC_CUDA=0 leaves the CUDA ops out, and SPECDEC_CUDA=1 requires them. SPECDEC_CUDA=keep builds none, and keeps
    those of an older build.
    """
    choice = os.environ.get("SPECDEC_CUDA", "")
    if choice not in ("", "0", "1", "keep"):
        stop(f"SPECDEC_CUDA must be 0, 1 or keep, got {choice}")
    path = None if choice in ("0", "keep") else _path()
    if path is None and choice == "1":
        stop("SPECDEC_CUDA=1 needs nvcc, which was not found in CUDA_HOME, CUDA_PATH, PATH or /usr/local/cuda")
    return path and _inspect(path)


def ids() -> bool:
    """Return whether to build the kernels for drafts with ids (csrc/cuda/by_id.h): not if SPECDEC_CUDA_IDS=0."""
    choice = os.environ.get("SPECDEC_CUDA_IDS", "")
    if choice not in ("", "0", "1"):
        stop(f"SPECDEC_CUDA_IDS must be 0 or 1, got {choice}")
    return choice != "0"


def _path() -> str | None:
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if folder and (Path(folder) / "bin" / "nvcc").exists():
            return str(Path(folder) / "bin" / "nvcc")
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def _inspect(path: str) -> Nvcc:
    def ask(option):
        return subprocess.run([path, option], capture_output=True, text=True, check=True).stdout

    version = re.search(r"release (\d+\.\d+)", ask("--version"))[1]
    known = re.findall(r"compute_(\d+)(\d)\b", ask("--list-gpu-arch"))
    return Nvcc(
        path, version, [f"{major}.{minor}" for major, minor in sorted(set(known), key=lambda n: (int(n[0]), n[1]))]
    )


def archs(nvcc: Nvcc) -> list[str]:
    """Return the architectures in TORCH_CUDA_ARCH_LIST, checked. The default is those of DEFAULT_ARCHS that this nvcc
    supports, the newest also as PTX."""
    asked = re.split(r"[;,\s]+", os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" ;,"))
    if asked == [""]:
        kept = [arch for arch in DEFAULT_ARCHS.removesuffix("+PTX").split(";") if arch in nvcc.known]
        return [*kept[:-1], kept[-1] + "+PTX"]
    for arch in asked:
        match = _ARCH.fullmatch(arch)
        if match is None:
            stop(f"TORCH_CUDA_ARCH_LIST: an architecture must look like 9.0, 9.0a or 9.0+PTX, got {arch}")
        if match[1] not in nvcc.known:
            stop(f"TORCH_CUDA_ARCH_LIST: nvcc {nvcc.version} compiles for {', '.join(nvcc.known)}, got {arch}")
    return list(dict.fromkeys(asked))


def code_flags(archs: list[str]) -> str:
    """Return nvcc's flags for architectures.

    ["8.0", "8.6", "12.0+PTX"] gives machine code for all three, and PTX of the third for later GPUs. No source uses a
    feature that only later architectures of a major version have. So nvcc compiles once to the PTX of the oldest one
    listed (compute_80), and ptxas makes the machine code of all of that major version from it (sm_80, sm_86). An
    architecture with a letter or +PTX is left out of this: its machine code is made from its own PTX.
    """
    flags, oldest = [], {}
    for arch in sorted(archs, key=lambda arch: float(_ARCH.fullmatch(arch)[1])):
        number, letter, ptx = _ARCH.fullmatch(arch).groups()
        name = number.replace(".", "") + letter
        source = name if letter or ptx else oldest.setdefault(number.split(".")[0], name)
        flags.append(f"-gencode arch=compute_{source},code=sm_{name}")
        if ptx:
            flags.append(f"-gencode arch=compute_{name},code=compute_{name}")
    return " ".join(flags)

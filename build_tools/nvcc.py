# SPDX-License-Identifier: Apache-2.0
"""Finds nvcc and says which GPU architectures to compile for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DEFAULT_ARCHS = "8.0;9.0;10.0;12.0+PTX"  # the first of each major version: 8.6 and 8.9 run the code of 8.0
_ARCH = re.compile(r"(\d+\.\d)([af]?)(\+PTX)?")


class Nvcc(NamedTuple):
    path: str
    version: str  # 13.0
    known: list[str]  # the architectures it compiles for: 8.0, 8.6 ...


def stop(message):
    sys.exit(f"specdec_kernels: {message}")


def wanted() -> Nvcc | None:
    """The compiler to build the CUDA ops with. SPECDEC_CUDA=0 leaves them out, SPECDEC_CUDA=1 insists on them, and keep
    leaves those alone that an older build made."""
    choice = os.environ.get("SPECDEC_CUDA", "")
    if choice not in ("", "0", "1", "keep"):
        stop(f"SPECDEC_CUDA must be 0, 1 or keep, got {choice}")
    path = None if choice in ("0", "keep") else _path()
    if path is None and choice == "1":
        stop("SPECDEC_CUDA=1 needs nvcc, which was not found in CUDA_HOME, PATH or /usr/local/cuda")
    return path and _inspect(path)


def ids() -> bool:
    """Whether to build the kernels for drafts with ids (csrc/cuda/by_id.h). SPECDEC_CUDA_IDS=0 leaves them out."""
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
    """TORCH_CUDA_ARCH_LIST, checked; by default all that this nvcc has of DEFAULT_ARCHS, the newest also as PTX."""
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
    """["8.0", "8.6", "12.0+PTX"] -> machine code for all, and PTX of the third for GPUs to come. No source asks for
    more than the first of a generation has: one PTX of it serves the others of that generation, and ptxas differs."""
    flags, oldest = [], {}
    for arch in sorted(archs, key=lambda arch: float(_ARCH.fullmatch(arch)[1])):
        number, letter, ptx = _ARCH.fullmatch(arch).groups()
        name = number.replace(".", "") + letter
        source = name if letter or ptx else oldest.setdefault(number.split(".")[0], name)
        flags.append(f"-gencode arch=compute_{source},code=sm_{name}")
        if ptx:
            flags.append(f"-gencode arch=compute_{name},code=compute_{name}")
    return " ".join(flags)

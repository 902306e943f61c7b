# SPDX-License-Identifier: Apache-2.0
"""Loading and choice of the implementations of ``torch.ops.specdec.*``.

CPU tensors run ``_C.so``. CUDA tensors run ``_C_cuda.so`` if its machine code fits every GPU of this machine, else
Triton, which also supports ROCm. ``SPECDEC_BACKEND=cpu``, ``cuda`` or ``triton`` overrides this choice; with ``triton``
and ``TRITON_INTERPRET=1`` CPU tensors run Triton's interpreter. Importing the package loads the libraries and asks the
driver which GPUs there are; it does not initialise CUDA.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
from pathlib import Path

import torch

from specdec_kernels.backends import dispatch, nvml

NAMES = ("cpu", "cuda", "triton")
_PACKAGE = Path(__file__).parents[1]
_LIBRARY = _PACKAGE / "_C.so"
_CUDA_LIBRARY = _PACKAGE / "_C_cuda.so"

# Tegra GPUs (on one chip with an ARM host) run machine code of their own architecture only.
_TEGRA = {(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)}


def load() -> None:
    """Register the ops. Importing the package does this once."""
    if not _LIBRARY.exists():
        raise ImportError(_not_built())
    name = chosen()
    torch.ops.load_library(str(_LIBRARY))
    dispatch.register("the CPU" if name == "cpu" else "the CPU or a GPU")
    if name == "cuda":
        torch.ops.load_library(str(_CUDA_LIBRARY))
    elif name == "triton":
        from specdec_kernels import triton

        triton.register("CPU" if _interpreted() else "CUDA")


@functools.cache
def chosen() -> str:
    """Return the backend of CUDA tensors: "cuda", "triton", or "cpu" if none is registered for them."""
    asked = os.environ.get("SPECDEC_BACKEND", "")
    if asked:
        if asked not in NAMES:
            raise ValueError(f"SPECDEC_BACKEND must be one of {', '.join(NAMES)}, got {asked}")
        if lacks(asked):
            raise RuntimeError(
                f"SPECDEC_BACKEND={asked} is not available: {lacks(asked)}; available: {', '.join(available())}"
            )
        return asked
    if not lacks("cuda") and not misfit():
        return "cuda"
    if not lacks("triton") and not _interpreted():
        return "triton"
    # A binary that does not fit is registered all the same; `info` shows why it cannot run.
    return "cpu" if lacks("cuda") else "cuda"


def available() -> list[str]:
    """Return the names of the backends that can run on this machine."""
    return [name for name in NAMES if not lacks(name) and (name == "cpu" or _runs(name))]


def lacks(name: str) -> str | None:
    """Return what this installation lacks for a backend, in words; None if it is complete. GPUs are not checked."""
    if name == "cuda" and not _CUDA_LIBRARY.exists():
        return f"{_CUDA_LIBRARY.name} was not built: nvcc was not found when the package was, or SPECDEC_CUDA=0"
    if name == "cuda" and not torch.version.cuda:
        return f"torch {torch.__version__} has no CUDA"
    if name == "triton" and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if name == "triton" and not (torch.version.cuda or torch.version.hip or _interpreted()):
        return f"torch {torch.__version__} has neither CUDA nor ROCm, and TRITON_INTERPRET is not 1"
    return None


def misfit() -> str | None:
    """Return the reason why the CUDA binary cannot run on this machine's GPUs, as text; None if it can, or if there is
    no known GPU."""
    gpus = _gpus()
    if gpus is None or not gpus.capabilities:
        return None
    compiler = cuda_compiler()
    if gpus.driver[0] < int(compiler.split(".")[0]):
        return f"the driver runs CUDA up to {gpus.driver[0]}.{gpus.driver[1]}, the binary is of CUDA {compiler}"
    for major, minor in gpus.capabilities:
        if not any(covers(arch, (major, minor)) for arch in cuda_archs()):
            return f"a GPU of arch {major}.{minor} is here, the binary has kernels for {', '.join(cuda_archs())}"
    return None


def covers(arch: str, capability: tuple[int, int]) -> bool:
    """Return whether code built for an arch ("8.0", "9.0a", "12.0+PTX") runs on a GPU of this compute capability."""
    match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
    assert match, arch  # build_tools/nvcc.py allows no others
    major, minor, kind, ptx = match.groups()
    built = int(major), int(minor)
    if kind == "a":
        return capability == built
    same_major = capability[0] == built[0] and capability >= built
    if kind == "f":
        return same_major
    if ptx and capability >= built:
        return True
    return capability == built or same_major and capability not in _TEGRA and built not in _TEGRA


def cuda_archs() -> list[str]:
    """Return the GPU architectures of the installed binary, as they were passed to the compiler."""
    return _built()[1].split(";") if _built() else []


def cuda_compiler() -> str:
    """Return the version of the CUDA compiler that built the binary, such as "13.0"; "" without a binary."""
    return _built()[0] if _built() else ""


@functools.cache
def cuda_reads_ids() -> bool:
    """Return whether the installed CUDA ops read drafts by id, which a build with SPECDEC_CUDA_IDS=0 leaves out.

    A binary without these kernels holds the text of the error that they raise in their place (csrc/cuda/by_id.h).
    """
    return _CUDA_LIBRARY.exists() and b"built without SPECDEC_CUDA_IDS=0" not in _CUDA_LIBRARY.read_bytes()


def cpu_isa() -> str:
    """Return the instruction set chosen for the CPU ops: base, avx2 or avx512 (``SPECDEC_ISA`` forces one)."""
    name = ctypes.CDLL(str(_LIBRARY)).specdec_cpu_isa
    name.restype = ctypes.c_char_p
    return name().decode()


def _not_built() -> str:
    build = "`pip install --no-build-isolation -e .` (torch >= 2.10 and a C++ compiler are needed)"
    for entry in sys.path:
        installed = Path(entry).resolve() / _PACKAGE.name
        if (installed / _LIBRARY.name).exists():
            return (
                f"specdec_kernels: the source folder {_PACKAGE} has no {_LIBRARY.name} and shadows the installed "
                f"package {installed}. Start Python in another folder, or build here: {build}."
            )
    return f"specdec_kernels: {_LIBRARY.name} has not been built. From the source tree run {build}."


def _runs(name):
    gpus = _gpus()
    if name == "triton" and _interpreted():
        return True
    return (gpus is None or bool(gpus.capabilities)) and not (name == "cuda" and misfit())


def _interpreted():
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _gpus():
    """Return this machine's GPUs (``nvml.gpus``); None if unknown, as under ROCm."""
    return None if torch.version.hip else nvml.gpus()


@functools.cache
def _built():
    """Return (compiler version, archs) from the mark that the build left in the binary; None without a binary.

    The binary may not load on this machine, so its bytes are searched for the mark instead.
    """
    if not _CUDA_LIBRARY.exists():
        return None
    match = re.search(rb"specdec_cuda (\d+\.\d+) ([\d.;afPTX+]+)\0", _CUDA_LIBRARY.read_bytes())
    assert match, f"{_CUDA_LIBRARY} bears no mark of its build"
    return match[1].decode(), match[2].decode()

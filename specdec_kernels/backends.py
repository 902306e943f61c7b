# SPDX-License-Identifier: Apache-2.0
"""The one place that loads and names the implementations behind ``torch.ops.specdec.*``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

_LIBRARY = Path(__file__).with_name("_C.so")


def load() -> None:
    """Register the ops. Importing the package does this once."""
    if not _LIBRARY.exists():
        raise ImportError(
            f"specdec_kernels: {_LIBRARY.name} has not been built. From the source tree run "
            "`pip install --no-build-isolation -e .` (torch >= 2.10 and a C++ compiler are needed)."
        )
    torch.ops.load_library(str(_LIBRARY))


def available() -> list[str]:
    """Backends that can run on this machine, by name."""
    return ["cpu"]


def cuda_archs() -> list[str]:
    """GPU architectures that the installed binary covers."""
    return []


def cpu_isa() -> str:
    """The instruction set picked for the CPU ops: base, avx2 or avx512 (``SPECDEC_ISA`` forces one)."""
    name = ctypes.CDLL(str(_LIBRARY)).specdec_cpu_isa
    name.restype = ctypes.c_char_p
    return name().decode()

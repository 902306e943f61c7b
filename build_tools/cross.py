# SPDX-License-Identifier: Apache-2.0
"""The cross compiler for a build for another machine, which SPECDEC_CROSS names: SPECDEC_CROSS=aarch64."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NamedTuple

from build_tools.nvcc import stop

COMPILERS = {"aarch64": "aarch64-linux-gnu-g++"}


class Cross(NamedTuple):
    machine: str  # aarch64
    compiler: str


def wanted() -> Cross | None:
    """Return the machine that SPECDEC_CROSS names and the compiler for it; None if the build is for this machine."""
    machine = os.environ.get("SPECDEC_CROSS", "")
    if not machine:
        return None
    if machine not in COMPILERS:
        stop(f"SPECDEC_CROSS must be {' or '.join(COMPILERS)}, got {machine}")
    if os.environ.get("SPECDEC_CUDA", "0") not in ("", "0"):
        stop(f"SPECDEC_CROSS builds CPU ops only, got SPECDEC_CUDA={os.environ['SPECDEC_CUDA']}")
    return Cross(machine, _compiler(machine))


def _compiler(machine: str) -> str:
    name = os.environ.get("CXX") or COMPILERS[machine]
    path = shutil.which(name)
    if path is None:
        stop(f"SPECDEC_CROSS={machine} needs {name}, which was not found (Debian: g++-{machine}-linux-gnu)")
    made_for = subprocess.run([path, "-dumpmachine"], capture_output=True, text=True, check=True).stdout.strip()
    if not made_for.startswith(f"{machine}-"):
        stop(f"SPECDEC_CROSS={machine} needs a compiler for {machine}, got CXX={name}, which compiles for {made_for}")
    return path

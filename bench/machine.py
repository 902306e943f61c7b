# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.machine``: the machine and the versions that a result was measured with."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata

import torch

import specdec_kernels as sk

QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,temperature.gpu,power.draw,pstate"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def commit() -> str:
    """Return the tree's commit, with a + if the tree was changed; SPECDEC_COMMIT replaces git."""
    if name := os.environ.get("SPECDEC_COMMIT"):
        return name
    return (
        _output("git", "rev-parse", "--short=12", "HEAD") + ("+" if _output("git", "status", "--porcelain") else "")
    ) or "unknown"


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def gpu_state() -> dict[str, str]:
    """Return the GPU's driver, and its clocks, temperature and power at present."""
    values = _output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader", "--id=0").split(", ")
    return dict(zip(QUERY.split(","), values)) if len(values) == QUERY.count(",") + 1 else {}


def describe(device: str) -> dict[str, str]:
    about = {
        "commit": commit(),
        "specdec_kernels": sk.__version__,
        "backends": f"{', '.join(sk.backends.available())}; GPU tensors on {sk.backends.chosen()}",
        "compiled for": " ".join(sk.backends.cuda_archs()) or "no GPU",
        "python": platform.python_version(),
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda})",
        "triton": version("triton"),
        "flashinfer-python": version("flashinfer-python"),
        "vllm": version("vllm"),
        "sglang": version("sglang"),
        "nvcc": (re.findall(r"V([\d.]+)", _output("nvcc", "--version")) or ["none"])[0],
        "CPU": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {sk.backends.cpu_isa()}",
    }
    if device == "cuda":
        p = torch.cuda.get_device_properties(0)
        sizes = f"{p.multi_processor_count} SMs, L2 {p.L2_cache_size >> 20} MiB, {p.total_memory >> 20} MiB"
        about["GPU"] = f"{p.name}, sm_{p.major}{p.minor}, {sizes}"
        about |= gpu_state()
    return about


if __name__ == "__main__":
    for key, value in describe("cuda" if torch.cuda.is_available() else "cpu").items():
        print(f"{key}: {value}")

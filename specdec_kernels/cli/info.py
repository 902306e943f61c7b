# SPDX-License-Identifier: Apache-2.0
"""``python -m specdec_kernels info``: what is installed, and the hardware and backends found."""

from __future__ import annotations

import os
import platform

import torch

import specdec_kernels as sk


def collect() -> dict[str, str]:
    """Return {label: value}, in the order to print."""
    backends = sk.backends
    cuda = torch.version.cuda
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    archs = ", ".join(backends.cuda_archs())
    return {
        "specdec_kernels": sk.__version__,
        "backends": ", ".join(backends.available()),
        "CPU instruction set": f"{backends.cpu_isa()} (SPECDEC_ISA forces one), {torch.get_num_threads()} threads",
        "GPU ops": _gpu_ops(),
        "CUDA archs built": f"{archs} (CUDA {backends.cuda_compiler()})" if archs else "none",
        "CUDA C++": backends.lacks("cuda") or backends.misfit() or _loaded("cuda"),
        "Triton": backends.lacks("triton") or _loaded("triton"),
        "torch": torch.__version__,
        "CUDA of torch": cuda or "none",
        "GPUs": ", ".join(gpus) or "none",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }


def sentence() -> str:
    """Return two sentences: which ops serve tensors on the CPU, and which serve those on a GPU."""
    name, names = sk.backends.chosen(), {"cuda": "CUDA C++ ops", "triton": "Triton ops"}
    interpreted = name == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    cpu = f"CPU tensors: {'Triton ops, interpreted' if interpreted else 'CPU ops'}."
    if not torch.cuda.device_count():
        return f"{cpu} No GPU found."
    runs = name in names and name in sk.backends.available()
    return f"{cpu} GPU tensors: {names[name] if runs else 'no ops, for the reasons above'}."


def _gpu_ops():
    name = sk.backends.chosen()
    return "none registered" if name == "cpu" else f"{name} (SPECDEC_BACKEND overrides)"


def _loaded(name):
    return "registered" if sk.backends.chosen() == name else "not chosen"

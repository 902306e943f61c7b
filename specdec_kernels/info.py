# SPDX-License-Identifier: Apache-2.0
"""What is installed and what it found: ``python -m specdec_kernels info``."""

from __future__ import annotations

import platform

import torch

import specdec_kernels as sk


def collect() -> dict[str, str]:
    """Label -> value, in the order to print."""
    cuda = torch.version.cuda
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else []
    return {
        "specdec_kernels": sk.__version__,
        "backends": ", ".join(sk.backends.available()),
        "CPU instruction set": f"{sk.backends.cpu_isa()} (SPECDEC_ISA forces one), {torch.get_num_threads()} threads",
        "CUDA archs built": ", ".join(sk.backends.cuda_archs()) or "none",
        "torch": torch.__version__,
        "CUDA of torch": cuda or "none",
        "GPUs": ", ".join(gpus) or "none",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }

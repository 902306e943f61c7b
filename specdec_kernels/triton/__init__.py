# SPDX-License-Identifier: Apache-2.0
"""The ops in Triton: for GPUs that the CUDA binary does not cover, for ROCm, and on CPU tensors under
TRITON_INTERPRET=1."""

from __future__ import annotations

import inspect
import warnings

import torch

from specdec_kernels.backends import dispatch

from .ops import op_of

_libraries = []  # a registration lives as long as its library object


def register(dispatch_key: str) -> None:
    """Make these the implementations of torch.ops.specdec.* for a dispatch key, in place of any there."""
    library = torch.library.Library("specdec", "IMPL", dispatch_key)
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in dispatch.overloads():
            library.impl(op, op_of(op), **override)
    _libraries.append(library)


def aot_cases():
    """Every kernel as it is launched for large rows, for triton.compile without a GPU: see aot.py."""
    from .aot import aot_cases as cases

    return cases()

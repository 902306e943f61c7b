# SPDX-License-Identifier: Apache-2.0
"""The ops in Triton: for GPUs that the CUDA binary does not cover, for ROCm, and on CPU tensors under
TRITON_INTERPRET=1."""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable

import torch

from specdec_kernels.backends import dispatch

_libraries = []  # a registration lives as long as its library object


def register(dispatch_key: str) -> None:
    """Make these the implementations of torch.ops.specdec.* for a dispatch key, in place of any there."""
    library = torch.library.Library("specdec", "IMPL", dispatch_key)
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in dispatch.overloads():
            # Torch's own operations inside must not make what they return require grad.
            module = importlib.import_module(f"{__name__}.{op.partition('.')[0]}")
            function = _with_room(op.partition(".")[0], getattr(module, op.replace(".", "_")))
            library.impl(op, torch.no_grad()(function), **override)
    _libraries.append(library)


def _with_room(op: str, function: Callable) -> Callable:
    """The function, whose results have no room in an error that names the op (empty() of csrc/binding/check.h)."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            first = str(error).split("\n")[0]
            if isinstance(error, torch.OutOfMemoryError) or any(words in first for words in _NO_ROOM):
                raise type(error)(f"{op}: results must fit into memory, got no room for them: {first}") from error
            raise

    return call


_NO_ROOM = ("can't allocate memory", "Storage size calculation overflowed")  # of torch's CPU allocator


def aot_cases():
    """Every kernel as it is launched for large rows, for triton.compile without a GPU: see aot.py."""
    from .aot import aot_cases as cases

    return cases()

# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and meta tensors. A fake takes the arguments it needs by their names in the op's schema;
where all sizes are known, C++ has looked at all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from specdec_kernels.arguments import picker


def fake(op: str) -> Callable[[Callable], Callable]:
    """Registers a function as the op's fake, and no results for its overload that writes to `out`."""

    def register(function: Callable) -> Callable:
        pick = picker(op, inspect.signature(function).parameters)
        check = getattr(torch.ops.specdec_check, op)

        def call(*given):
            if _are_known(given):
                check.default(*given)
            return function(*pick(given))

        def write(*given, **out):
            if _are_known((*given, *out.values())):
                check.out(*given, **out)

        torch.library.register_fake(f"specdec::{op}")(call)
        if "out" in getattr(torch.ops.specdec, op).overloads():
            torch.library.register_fake(f"specdec::{op}.out")(write)
        return function

    return register


def _are_known(given) -> bool:
    """Whether no size is a symbol."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    sizes = [n for x in tensors for n in (*x.shape, *x.stride(), x.storage_offset())]
    return not any(isinstance(x, torch.SymInt) for x in (*given, *sizes))

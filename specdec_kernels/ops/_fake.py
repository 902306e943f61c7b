# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and meta tensors. A fake takes the arguments it needs by their names in the op's schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from specdec_kernels.arguments import picker


def fake(op: str) -> Callable[[Callable], Callable]:
    """Registers a function as the op's fake, and no results for its overload that writes to `out`."""

    def register(function: Callable) -> Callable:
        pick = picker(op, inspect.signature(function).parameters)
        torch.library.register_fake(f"specdec::{op}")(lambda *given: function(*pick(given)))
        if "out" in getattr(torch.ops.specdec, op).overloads():
            torch.library.register_fake(f"specdec::{op}.out")(lambda *given, **out: None)
        return function

    return register

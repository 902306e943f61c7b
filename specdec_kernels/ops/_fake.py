# SPDX-License-Identifier: Apache-2.0
"""Shapes for torch.compile and meta tensors. A fake takes the arguments it needs by their names in the op's schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import itemgetter

import torch

from specdec_kernels.arguments import taken


def fake(op: str) -> Callable[[Callable], Callable]:
    """Registers a function as the op's fake, and no results for its overload that writes to `out`."""
    names = [x.name for x in taken(op)]

    def register(function: Callable) -> Callable:
        first, *rest = [names.index(name) for name in inspect.signature(function).parameters]
        pick = itemgetter(first, *rest)
        call = (lambda *given: function(*pick(given))) if rest else (lambda *given: function(given[first]))
        torch.library.register_fake(f"specdec::{op}")(call)
        if "out" in getattr(torch.ops.specdec, op).overloads():
            torch.library.register_fake(f"specdec::{op}.out")(lambda *given, **out: None)
        return function

    return register

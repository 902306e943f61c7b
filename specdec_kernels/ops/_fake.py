# SPDX-License-Identifier: Apache-2.0
"""Registration of fakes: functions that return empty results of the right shapes, for torch.compile and meta tensors.

A fake takes the arguments that it needs, by their names in the op's schema. If all sizes are known, the op's C++ checks
the arguments before the fake is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from specdec_kernels.argument_picker import picker


def fake(op: str) -> Callable[[Callable], Callable]:
    """Register a function as the op's fake. For overloads that write to `out` the fake returns None."""

    def register(function: Callable) -> Callable:
        pick = picker(op, inspect.signature(function).parameters)
        for overload in getattr(torch.ops.specdec, op).overloads():
            check = getattr(getattr(torch.ops.specdec_check, op), overload)

            def call(*given, check=check, **out):
                if _are_known((*given, *out.values())):
                    check(*given, **out)
                return None if out else function(*pick(given))

            torch.library.register_fake(f"specdec::{op}" + f".{overload}" * (overload != "default"))(call)
        return function

    return register


def _are_known(given) -> bool:
    """Return whether no size is symbolic."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    sizes = [n for x in tensors for n in (*x.shape, *x.stride(), x.storage_offset())]
    return not any(isinstance(x, torch.SymInt) for x in (*given, *sizes))

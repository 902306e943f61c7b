# SPDX-License-Identifier: Apache-2.0
"""The ops, put together: checked in C++, written by Triton."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch


def op_of(op: str) -> Callable:
    """An op, by a name of dispatch.overloads(): specdec_check's looks at the arguments and makes the results, and the
    function of the op's name in the module of its name writes them."""
    name, _, overload = op.partition(".")
    prepare = getattr(getattr(torch.ops.specdec_check, name), overload or "default")
    write = getattr(importlib.import_module(f"{__package__}.{name}"), name)

    @torch.no_grad()  # torch's own operations inside must not make what they return require grad
    def call(*args, **out):
        results = prepare(*args, **out)
        write(tuple(out.values()) if out else results, *args)
        return results

    return call

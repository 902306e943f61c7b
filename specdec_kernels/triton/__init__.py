# SPDX-License-Identifier: Apache-2.0
"""The ops in Triton: for GPUs that the CUDA binary does not cover, for ROCm, and on CPU tensors under
TRITON_INTERPRET=1. C++ checks a call and makes its results, Triton writes them."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable

import torch

from specdec_kernels.arguments import picker, sides, taken
from specdec_kernels.backends import dispatch

from .core.arguments import GivenPenalties, GivenRows

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


def writer_of(op: str) -> Callable[[tuple | torch.Tensor, tuple], None]:
    """The function of the op's name in the module of its name, of the op's results and arguments. It is handed those
    arguments that it names; of a side, as `target` or `draft`, those that GivenRows names, as penalties of a side those
    that GivenPenalties names. What it does not name and a call gives is refused."""
    function = getattr(importlib.import_module(f"{__package__}.{op}"), op)
    known = taken(op)
    names: list[str | tuple[str, ...]] = []
    for name in [*inspect.signature(function).parameters][1:]:
        is_side = name in sides(op) and all(x.name != name for x in known)
        if name.endswith("penalties"):
            names.append(tuple(name.removesuffix("penalties") + field for field in GivenPenalties._fields))
        else:
            names.append(tuple(f"{name}_{field}" for field in GivenRows._fields) if is_side else name)
    pick = picker(op, names)
    served = {x for name in names for x in ((name,) if isinstance(name, str) else name)}
    others = [(i, x) for i, x in enumerate(known) if x.name not in served]

    def write(results, given):
        for i, x in others:
            if i < len(given) and not x.is_off(given[i]):
                raise NotImplementedError(f"{op}: Triton does not serve {x.name.removesuffix('_numbers')}")
        function(results, *pick(given))

    return write


def op_of(op: str) -> Callable:
    """An op, by a name of dispatch.overloads(): specdec_check's looks at the arguments and makes the results, and
    Triton's function writes them."""
    name, _, overload = op.partition(".")
    prepare = getattr(getattr(torch.ops.specdec_check, name), overload or "default")
    write = writer_of(name)

    @torch.no_grad()  # torch's own operations inside must not make what they return require grad
    def call(*args, **out):
        results = prepare(*args, **out)
        write(tuple(out.values()) if out else results, args)
        return results

    return call

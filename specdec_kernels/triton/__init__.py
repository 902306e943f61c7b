# SPDX-License-Identifier: Apache-2.0
"""The ops in Triton: for GPUs that the CUDA binary does not cover, for ROCm, and for CPU tensors if TRITON_INTERPRET=1.

C++ checks a call and allocates its results; Triton fills them.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable

import torch

from specdec_kernels.argument_picker import picker
from specdec_kernels.arguments import sides, taken
from specdec_kernels.backends import dispatch

from .core.arguments import GivenRows, GivenViews

_libraries = []  # a registration lives as long as its library object


def register(dispatch_key: str) -> None:
    """Register the Triton ops as the kernels of torch.ops.specdec.* for a dispatch key, in place of any others."""
    library = torch.library.Library("specdec", "IMPL", dispatch_key)
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in dispatch.overloads():
            library.impl(op, op_of(op), **override)
    _libraries.append(library)


def _parameters(op: str) -> tuple[Callable, list[str | tuple[str, ...]]]:
    """Return the Triton function of an op, and the names of the arguments that each of its parameters takes.

    The function and its module have the op's name. The first parameter, which takes the results, is left out. A
    parameter named after a side, such as `target`, takes all fields of GivenRows unless an argument has that name; one
    that ends in `views` takes all fields of GivenViews."""
    function = getattr(importlib.import_module(f"{__package__}.{op}"), op)
    known = taken(op)
    names: list[str | tuple[str, ...]] = []
    for name in [*inspect.signature(function).parameters][1:]:
        is_side = name in sides(op) and all(x.name != name for x in known)
        if name.endswith("views"):
            names.append(tuple(name.removesuffix("views") + field for field in GivenViews._fields))
        else:
            names.append(tuple(f"{name}_{field}" for field in GivenRows._fields) if is_side else name)
    return function, names


def refuser(op: str) -> Callable[[tuple], None]:
    """Return a function that takes an op's arguments, and raises if one is given that the Triton op does not serve."""
    served = {x for name in _parameters(op)[1] for x in ((name,) if isinstance(name, str) else name)}
    others = [(i, x) for i, x in enumerate(taken(op)) if x.name not in served]

    def refuse(given):
        for i, x in others:
            if i < len(given) and not x.is_off(given[i]):
                raise NotImplementedError(f"{op}: Triton does not serve {x.name.removesuffix('_numbers')}")

    return refuse


def writer_of(op: str) -> Callable[[tuple | torch.Tensor, tuple], None]:
    """Return a function that takes an op's results and arguments, and fills the results."""
    function, names = _parameters(op)
    pick, refuse = picker(op, names), refuser(op)

    def write(results, given):
        refuse(given)
        function(results, *pick(given))

    return write


def op_of(op: str) -> Callable:
    """Return the implementation of an op or overload, given its name in dispatch.overloads().

    The op of the same name in specdec_check checks the arguments and allocates the results, unless `out` gives them.
    The Triton function fills them.
    """
    name, _, overload = op.partition(".")
    prepare = getattr(getattr(torch.ops.specdec_check, name), overload or "default")
    write = writer_of(name)

    @torch.no_grad()  # otherwise torch's own operations inside would return tensors that require grad
    def call(*args, **out):
        results = prepare(*args, **out)
        write(tuple(out.values()) if out else results, args)
        return results

    return call

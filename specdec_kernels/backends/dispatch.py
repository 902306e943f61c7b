# SPDX-License-Identifier: Apache-2.0
"""Registrations of torch.ops.specdec.* with torch's dispatcher, in addition to the kernels.

Autograd passes through the ops: results do not require grad. Differentiating transforms of torch.func raise. Tensors
that no kernel takes raise an error that names the argument.
"""

from __future__ import annotations

import functools

import torch

from specdec_kernels.arguments import called
from specdec_kernels.backends import transforms

# CompositeExplicitAutograd is used for every backend without a kernel.
_WITHOUT_KERNELS = ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA")
_libraries = []  # keeps the library objects alive, and with them their registrations


def ops() -> list[str]:
    """Return the names of all ops that the library defines."""
    return [name for name in overloads() if "." not in name]


def overloads() -> list[str]:
    """Return the names of all ops and their overloads, such as "verify_chain.out"."""
    return sorted(
        name.removeprefix("specdec::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("specdec::")
    )


def overload_of(op: str) -> torch._ops.OpOverload:
    """Return the overload in torch.ops.specdec for a name from overloads()."""
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.specdec, name), overload or "default")


def register(places: str) -> None:
    """Register a fallthrough for autograd, the handler of torch.func transforms, and an error for all other backends.

    The stable ABI cannot register these. places: the devices that tensors may be on, for the error text.
    """
    keys = ("Autograd", transforms.KEY, *_WITHOUT_KERNELS)
    autograd, transformed, *elsewhere = (torch.library.Library("specdec", "IMPL", key) for key in keys)
    for op in overloads():
        # No op is differentiable. Torch's own fallback would mark results as requiring grad, and backward would fail.
        autograd.impl(op, torch.library.fallthrough_kernel)
        transformed.impl(op, functools.partial(transforms.call, overload_of(op)))
        for library in elsewhere:
            library.impl(op, functools.partial(_refuse, op, places))
    _libraries.extend((autograd, transformed, *elsewhere))


def _refuse(op, places, *args, **kwargs):
    """Raise for a tensor with a layout or device that no kernel takes, or for a missing tensor."""
    name = op.partition(".")[0]
    given = list(zip(overload_of(op)._schema.arguments, args))
    for argument, x in given:
        if x is None and str(argument.type) == "Tensor":
            raise RuntimeError(f"{name}: {argument.name} must be a tensor, got None")
    tensors = [(called(name)[argument.name], x) for argument, x in given if isinstance(x, torch.Tensor)]
    for of_call, x in tensors:
        if x.is_nested or x.layout is not torch.strided:
            layout = "a nested tensor" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise NotImplementedError(f"{name}: {of_call} must be a dense tensor, got {layout}")
    for of_call, x in tensors:
        if x.device.type != "cpu":
            raise NotImplementedError(f"{name}: {of_call} must be on {places}, got {x.device}")
    raise NotImplementedError(f"{name}: {', '.join(kwargs) or 'its tensors'} must be dense tensors on {places}")

# SPDX-License-Identifier: Apache-2.0
"""What torch's dispatcher does with torch.ops.specdec.* beside the kernels: autograd looks through the ops, torch.func
finds them not differentiable, and tensors that no kernel takes end in an error that names the argument."""

from __future__ import annotations

import functools

import torch

from specdec_kernels.arguments import called
from specdec_kernels.backends import transforms

_WITHOUT_KERNELS = (
    "CompositeExplicitAutograd",
    "NestedTensorCPU",
    "NestedTensorCUDA",
)  # the first: every backend but the others
_libraries = []  # a registration lives as long as its library object


def ops() -> list[str]:
    """Every op, as csrc/schema.cpp defines them."""
    return [name for name in overloads() if "." not in name]


def overloads() -> list[str]:
    """Every op and, as "verify_chain.out", what else bears its name."""
    return sorted(
        name.removeprefix("specdec::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("specdec::")
    )


def overload_of(op: str) -> torch._ops.OpOverload:
    """torch.ops.specdec's, by a name of overloads()."""
    name, _, overload = op.partition(".")
    return getattr(getattr(torch.ops.specdec, name), overload or "default")


def register(places: str) -> None:
    """The stable ABI has neither a fallthrough nor a kernel for any backend, so both are registered here. `places` says
    in an error where tensors may be."""
    keys = ("Autograd", transforms.KEY, *_WITHOUT_KERNELS)
    autograd, transformed, *elsewhere = (torch.library.Library("specdec", "IMPL", key) for key in keys)
    for op in overloads():
        # No op is differentiable. Torch's own fallback would say of results that they require grad, and fail
        # in backward.
        autograd.impl(op, torch.library.fallthrough_kernel)
        transformed.impl(op, functools.partial(transforms.call, overload_of(op)))
        for library in elsewhere:
            library.impl(op, functools.partial(_refuse, op, places))
    _libraries.extend((autograd, transformed, *elsewhere))


def _refuse(op, places, *args, **kwargs):
    """Tensors of a layout or a device that no kernel is loaded for; or no tensor at all."""
    name = op.partition(".")[0]
    for argument, x in zip(overload_of(op)._schema.arguments, args):
        of_call = called(name)[argument.name]
        if x is None and str(argument.type) == "Tensor":
            raise RuntimeError(f"{name}: {argument.name} must be a tensor, got None")
        if isinstance(x, torch.Tensor) and (x.is_nested or x.layout is not torch.strided):
            layout = "a nested tensor" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise NotImplementedError(f"{name}: {of_call} must be a dense tensor, got {layout}")
        if isinstance(x, torch.Tensor) and x.device.type != "cpu":
            raise NotImplementedError(f"{name}: {of_call} must be on {places}, got {x.device}")
    raise NotImplementedError(f"{name}: {', '.join(kwargs) or 'its tensors'} must be dense tensors on {places}")

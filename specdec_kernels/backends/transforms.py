# SPDX-License-Identifier: Apache-2.0
"""The ops under ``torch.func``: differentiating transforms raise, and ``vmap`` calls the op once for each entry.

``grad``, ``vjp``, ``jvp`` and transforms built on them raise, because no op is differentiable and torch would return
zeros. call() is registered at a dispatch key that torch uses only inside a transform, so other calls do not pay for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map_only

from specdec_kernels.arguments import called, taken

KEY = "FuncTorchDynamicLayerFrontMode"


def call(overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Handle the innermost transform, then call the op inside it."""
    interpreter = retrieve_current_functorch_interpreter()
    level, kind = interpreter.level(), interpreter.key()
    if kind == TransformType.Vmap:
        if forward_ad._current_level >= 0:
            with interpreter.lower():
                _refuse_tracked(overload, args, kwargs, lambda x: _is_dual(_functorch._unwrap_batched(x, level)[0]))
        return _call_each(overload, interpreter, args, kwargs)
    if kind == TransformType.Functionalize:
        wrap = _functorch._wrap_functional_tensor
        inner = tree_map_only(torch.Tensor, lambda x: _functional_value(x, level), (args, kwargs))
    else:
        _refuse_tracked(overload, args, kwargs, _is_tracked)
        wrap = _functorch._wrap_for_grad
        inner = tree_map_only(torch.Tensor, lambda x: _functorch._unwrap_for_grad(x, level), (args, kwargs))
    with interpreter.lower():
        found = overload(*inner[0], **inner[1])
    return tree_map_only(torch.Tensor, lambda x: wrap(x, level), found)


def _refuse_tracked(overload, args, kwargs, is_tracked):
    """Raise if the derivative at this level would go through the op."""
    names = [argument.name for argument in overload._schema.arguments]
    for name, x in [*zip(names, args), *kwargs.items()]:
        if isinstance(x, torch.Tensor) and is_tracked(x):
            _refuse(overload._schema.name.removeprefix("specdec::"), name)


def refuse_dual(op: str, arguments: tuple) -> None:
    """Raise for a dual tensor of forward-mode AD outside of torch.func.

    Forward-mode AD has no dispatch key, so the public functions call this.
    """
    if torch.compiler.is_dynamo_compiling():  # Dynamo cannot trace unpack_dual()
        return
    for argument, x in zip(taken(op), arguments):
        if isinstance(x, torch.Tensor) and not _functorch.is_functorch_wrapped_tensor(x) and _is_dual(x):
            _refuse(op, argument.name)  # call() handles wrapped tensors


def _is_dual(x):
    return x.is_floating_point() and x.layout is torch.strided and forward_ad.unpack_dual(x).tangent is not None


def _refuse(op, name):
    raise NotImplementedError(
        f"{op}: {called(op).get(name, name)} must be detached, got one to differentiate by: no op is differentiable"
    )


def _is_tracked(x):
    if not _functorch.is_gradtrackingtensor(x) or _functorch.maybe_get_level(x) != _functorch.maybe_current_level():
        return False
    return x.requires_grad or forward_ad.unpack_dual(x).tangent is not None


def _functional_value(x, level):
    if not _functorch.is_functionaltensor(x) or _functorch.maybe_get_level(x) != level:
        return x
    torch._sync(x)
    return _functorch._unwrap_functional_tensor(x, False)


def _call_each(overload, interpreter, args, kwargs):
    """Call the op on each entry of vmap's batch, and stack the results."""
    op, level = overload._schema.name.removeprefix("specdec::"), interpreter.level()
    entries = {}  # id of a batched tensor -> its entries
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor):
            inner, dim = _functorch._unwrap_batched(x, level)
            if dim is not None:
                entries[id(x)] = inner.unbind(dim)
    written = [(x.public, given) for x, given in zip(taken(op), args) if x.is_written]
    for name, x in [*written, *((f"out.{name}", x) for name, x in kwargs.items())]:
        if entries and id(x) not in entries:
            raise RuntimeError(f"{op}: {name} must have an entry for each of vmap's, got one for all")
    size = min(map(len, entries.values()), default=None)
    if size == 0:
        raise RuntimeError(f"{op}: vmap must have at least one entry, got none")
    found = []
    with interpreter.lower():
        for i in range(size or 1):
            entry = lambda x, i=i: entries[id(x)][i] if id(x) in entries else x  # noqa: E731
            own = tree_map_only(torch.Tensor, entry, (args, kwargs))
            found.append(overload(*own[0], **own[1]))
        if size is None or not overload._schema.returns:
            return found[0]
        together = [torch.stack(each) for each in zip(*([x] if isinstance(x, torch.Tensor) else x for x in found))]
    batched = [_functorch._add_batch_dim(x, 0, level) for x in together]
    return batched[0] if isinstance(found[0], torch.Tensor) else tuple(batched)

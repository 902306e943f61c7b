# SPDX-License-Identifier: Apache-2.0
"""Small example calls of each function in registry.FUNCTIONS, one file each. They give every argument of the schemas.

Checks over all ops use them: sanitizers, CUDA graphs, opcheck and torch.compile, the check of a wheel.

    >>> from specdec_kernels import example_calls
    >>> for name, arguments in example_calls.calls("accept"):
    ...     print(name, specdec_kernels.accept(**arguments).shape)
    probabilities torch.Size([3, 77])
    ids of one-hot drafts torch.Size([3, 77])
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specdec_kernels import registry
from specdec_kernels.arguments import TABLE, taken
from specdec_kernels.example_calls.inputs import Inputs
from specdec_kernels.rows import Rows

__all__ = ["Call", "Inputs", "calls", "every_call", "few", "flat", "folded", "op_arguments", "outcome"]


class Call(NamedTuple):
    name: str  # what this call shows
    arguments: dict  # keyword arguments of the public function


def calls(function: str, **inputs) -> list[Call]:
    """Return the calls of one public function. inputs: arguments of Inputs (device, dtype, V, pad, seed)."""
    module = importlib.import_module(f"{__name__}.{function}")
    return [Call(*each) for each in module.calls(Inputs(**inputs))]


def every_call(**inputs) -> list[tuple[str, Call]]:
    return [(function, call) for function in registry.FUNCTIONS for call in calls(function, **inputs)]


def few(function: str, **inputs) -> list[Call]:
    """Return a subset of the calls in which each argument has each kind of value at least once."""
    seen, chosen = set(), []
    for call in calls(function, **inputs):
        kinds = {(name, _kind(x)) for name, x in flat(call.arguments).items()}
        if not kinds <= seen:
            seen |= kinds
            chosen.append(call)
    return chosen


def flat(arguments: dict) -> dict:
    """Return the arguments with each given field of Rows as an entry: "target.logits", "target.temperature" ..."""
    found = {}
    for name, x in arguments.items():
        if not isinstance(x, Rows):
            found[name] = x
            continue
        defaults = Rows._field_defaults
        found |= {f"{name}.{field}": y for field, y in x._asdict().items() if y is not defaults.get(field, ...)}
    return found


def folded(arguments: dict) -> dict:
    """Return the arguments of a public function from flat()'s: the inverse of flat()."""
    found: dict = {}
    fields: dict = {}
    for name, x in arguments.items():
        side, dot, field = name.partition(".")
        if dot:
            fields.setdefault(side, {})[field] = x
        else:
            found[name] = x
    return found | {side: Rows(**given) for side, given in fields.items()}


def outcome(op: str, function: Callable, *args, **kwargs) -> Any:
    """Return the result of a function that takes the arguments of a public function, `op`.

    If the op writes to some of them, the function gets copies, and these follow the result in a tuple.
    """
    written = [x.public for x in TABLE.get(op, ()) if x.is_written]
    if not written:
        return function(*args, **kwargs)
    named = dict(zip([x.public for x in taken(op)], args)) | kwargs
    copies = {name: _copied(named[name]) for name in written}
    return function(**named | copies), *copies.values()


def _copied(x):
    """Return a copy with the same strides; anything but a dense tensor as it is."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested:
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def _kind(x: object) -> object:
    if isinstance(x, torch.Tensor):
        return x.dim(), x.dtype
    if isinstance(x, tuple):
        return tuple(_kind(part) for part in x)
    return x if isinstance(x, (str, bool)) else type(x)


class _Recorder(TorchDispatchMode):
    def __init__(self, op):
        super().__init__()
        self.op, self.arguments = op, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "specdec" and function._opname == self.op:
            defaults = [x.default_value for x in function._schema.arguments if not x.kwarg_only]
            self.arguments.append((*args, *defaults[len(args) :]))  # torch leaves out what is as its default
        return function(*args, **(kwargs or {}))


def op_arguments(op: str, function, *args, **kwargs) -> tuple:
    """Return the arguments that function(...) passes to torch.ops.specdec.<op>, which it must call once."""
    with _Recorder(op) as recorder:
        function(*args, **kwargs)
    (arguments,) = recorder.arguments
    return arguments

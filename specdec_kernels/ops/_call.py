# SPDX-License-Identifier: Apache-2.0
"""The call of an op by a public function. The op's C++ checks all arguments that reach it. The public function checks
the others: words, Python numbers, and keywords that exclude each other.

Public functions raise TypeError for an argument that is not the tensor, number or word wanted, NotImplementedError for
a layout or device without kernels and for derivatives, and ValueError for anything else that is invalid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from specdec_kernels.arguments import TYPES, called, plain, taken
from specdec_kernels.backends import transforms
from specdec_kernels.ops import _check

REFUSED = (TypeError, ValueError, NotImplementedError)


def op(name: str, overload: str = "default", space: Any = torch.ops.specdec) -> Callable:
    """Return a function that calls the op. Calls with views use the overload that takes them.

    It raises the errors that a public function raises. space: the namespace of the op."""
    without, known = len(plain(name)), getattr(space, name)
    run = with_views = getattr(known, overload)
    if without < len(taken(name)):
        with_views = getattr(known, "views_out" if overload == "out" else "views")

    def call(*arguments, **out):
        if forward_ad._current_level >= 0:  # true only inside dual_level(); other calls pay for this test alone
            transforms.refuse_dual(name, arguments)
        try:
            return (run if len(arguments) <= without else with_views)(*arguments, **out)
        except Exception as error:
            raise _explained(name, error, arguments, out) from None

    return call


def renamed(error: Exception, *pairs: tuple[str, str]) -> Exception:
    """Return an error of the same type and text, with the first `old` of each pair replaced by `new`."""
    text = str(error)
    for old, new in pairs:
        text = text.replace(old, new, 1)
    return type(error)(text)


def _explained(op: str, error: Exception, arguments: tuple, out: Mapping[str, object]) -> Exception:
    """Return the error to raise: that of the first argument that is no usable tensor, else the op's as ValueError.

    Errors that are not about arguments, such as a lack of memory, are returned unchanged."""
    names, given = called(op), zip(taken(op), arguments)
    tensors = [(names[x.name], x.optional, value) for x, value in given if TYPES[x.type][0] == "Tensor"]
    for name, optional, value in tensors + [(f"out.{name}", False, x) for name, x in out.items()]:
        try:
            if not (optional and value is None):
                _check.tensor(op, name, value)
        except (TypeError, NotImplementedError) as wrong:
            return wrong
    text = str(error).partition("\n")[0]
    refused = type(error) is RuntimeError and text.startswith(f"{op}: ") and not text.endswith("got no room for it")
    return ValueError(text) if refused else error

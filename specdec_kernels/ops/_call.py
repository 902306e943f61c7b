# SPDX-License-Identifier: Apache-2.0
"""The call of an op by a public function. The op's C++ checks all arguments that reach it. The public function checks
the others: words, Python numbers, and keywords that exclude each other.

TypeError: no tensor, number or word where one is wanted. ValueError: anything else that is refused.
NotImplementedError: a layout or a device without kernels, a derivative.
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
    """Return the op in torch.ops.specdec, or its overload with views if a call has one. It raises a Python function's
    errors."""
    without, known = len(plain(name)), getattr(space, name)
    run = with_views = getattr(known, overload)
    if without < len(taken(name)):
        with_views = getattr(known, "views_out" if overload == "out" else "views")

    def call(*arguments, **out):
        if forward_ad._current_level >= 0:  # inside dual_level() only: this test is all that other calls pay
            transforms.refuse_dual(name, arguments)
        try:
            return (run if len(arguments) <= without else with_views)(*arguments, **out)
        except Exception as error:
            raise _explained(name, error, arguments, out) from None

    return call


def renamed(error: Exception, *pairs: tuple[str, str]) -> Exception:
    """Return the same error, with the name of another function's argument."""
    text = str(error)
    for old, new in pairs:
        text = text.replace(old, new, 1)
    return type(error)(text)


def _explained(op: str, error: Exception, arguments: tuple, out: Mapping[str, object]) -> Exception:
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

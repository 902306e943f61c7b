# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter: less work for each call of a function, and workarounds for its older versions."""

import contextlib

import numpy
import triton
import triton.language as tl
from triton.runtime import interpreter


@triton.jit
def _nothing():
    pass


def interpreted() -> bool:
    return isinstance(_nothing, interpreter.InterpretedFunction)


@contextlib.contextmanager
def interpreting():
    """Return a context manager for one launch in Triton's interpreter.

    Triton's interpreter patches its language in every call of a function inside a kernel. Doing so once per launch and
    module is enough, and twice as fast."""
    patched = set()

    def call(self, *args, **kwargs):
        module = id(self.fn.__globals__)
        if module not in patched:
            patched.add(module)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    stand_ins = {
        (interpreter.InterpretedFunction, "__call__"): call,
        (interpreter, "_implicit_cvt"): _bools_are_one_bit(interpreter._implicit_cvt),
        (interpreter, "_patch_lang_tensor"): _one_value_is_an_index(interpreter._patch_lang_tensor),
    }
    theirs = {(holder, name): getattr(holder, name) for holder, name in stand_ins}
    for (holder, name), ours in stand_ins.items():
        setattr(holder, name, ours)
    try:
        with numpy.errstate(all="ignore"):  # numpy warns where a GPU does not: exp2 of -inf, an overflow
            yield
    finally:
        for (holder, name), value in theirs.items():
            setattr(holder, name, value)


def _bools_are_one_bit(convert):
    """Work around Triton 3.6, which converts a bool to 32 bits and then refuses it as an int1."""

    def converted(arg):
        if isinstance(arg, bool):
            return tl.tensor(interpreter.TensorHandle(numpy.array([arg]), tl.int1), tl.int1)
        return convert(arg)

    return converted


def _one_value_is_an_index(patch):
    """Work around Triton 3.6, which takes int() of an array of one value. numpy 2.4 refuses that."""

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched

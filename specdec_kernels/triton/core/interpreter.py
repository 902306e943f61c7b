# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter around our launches: less work for each call of a function, and the faults of its older versions
mended. Compiled kernels never come here."""

import contextlib

import numpy
import triton.language as tl
from triton.runtime import interpreter


@contextlib.contextmanager
def interpreting():
    """Around one launch. Triton's interpreter patches its language anew in every call of a function inside a kernel.
    Once per launch and module is enough, and makes it twice as fast."""
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
        with numpy.errstate(all="ignore"):  # numpy warns of what a GPU computes in silence: exp2 of -inf, an overflow
            yield
    finally:
        for (holder, name), value in theirs.items():
            setattr(holder, name, value)


def _bools_are_one_bit(convert):
    """Triton 3.6 makes 32 bits of a bool, and then refuses them as an int1."""

    def converted(arg):
        if isinstance(arg, bool):
            return tl.tensor(interpreter.TensorHandle(numpy.array([arg]), tl.int1), tl.int1)
        return convert(arg)

    return converted


def _one_value_is_an_index(patch):
    """Triton 3.6 takes int() of an array of one value, which numpy 2.4 refuses."""

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched

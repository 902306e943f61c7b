# SPDX-License-Identifier: Apache-2.0
"""Triton's interpreter with less work per operation, and the same results bit for bit.

The interpreter's time is per operation of a kernel, not per element. Nine tenths of it go into three things: the shape
of a type and the common type of two are computed again for each operation; each int32 sum is tested for overflow, which
is not reported, since the option `debug` is off; and each launch patches triton.language and undoes it. hasten() caches
shapes and types, skips the overflow test, and patches once per process. Loads, whose time is per element, read only the
elements under their mask if these are few. It is for processes that only interpret.

With other versions of Triton than KNOWN, hasten() does nothing. Operations outside the plain cases go to Triton's own
code.
"""

import functools

import numpy as np
from support.interpreter_semantic import semantic

KNOWN = ("3.9.",)  # versions of Triton whose interpreter was read and compared: test_interpreter.py


def hasten():
    import triton

    if triton.__version__.startswith(KNOWN):
        _hasten()


@functools.cache  # once a process
def _hasten():
    import triton.language as tl
    from triton.language import core
    from triton.runtime import interpreter

    _types(core)
    interpreter._get_np_dtype = _numpy_types(tl, interpreter._get_np_dtype)
    # Other modules have imported these two objects already, so their classes are replaced, not the objects.
    interpreter.interpreter_builder.__class__ = _builder(interpreter)
    interpreter.interpreter_semantic.__class__ = semantic(core, interpreter)
    _patch_once(tl, interpreter)
    fewer_rows()


def fewer_rows():
    """Make blocks of fewer rows. With cheap operations the elements take the time, and in tests most are padding."""
    from specdec_kernels.triton.core import launch

    table = launch.table

    @functools.cache
    def smaller(V):
        sizes = table(V)
        fewer = (16 if sizes.width <= 256 else 32) * launch.CHUNK // sizes.width
        return sizes._replace(rows=min(sizes.rows, fewer))

    launch.table = smaller


def _types(core):
    """Keep one object per block type, and compute once per type the facts that each tensor takes from its type."""
    blocks, make = {}, core.block_type.__init__

    def key(element, shape):
        shape = tuple([s.value if type(s) is core.constexpr else s for s in shape])
        return element.name, getattr(element, "address_space", None), shape

    def new(cls, element_ty, shape):
        found = blocks.get(key(element_ty, shape)) if cls is core.block_type else None
        return object.__new__(cls) if found is None else found

    def initialise(self, element_ty, shape):
        if "numel" not in self.__dict__:
            make(self, element_ty, shape)  # raises if a block type is invalid, which is then not kept
            if type(self) is core.block_type:
                blocks[key(element_ty, shape)] = self

    def with_element_ty(self, scalar_ty):
        known = self.__dict__.setdefault("_with_element", {})
        if type(scalar_ty) is not core.dtype:
            return core.block_type(scalar_ty, self.shape)
        if scalar_ty.name not in known:
            known[scalar_ty.name] = core.block_type(scalar_ty, self.shape)
        return known[scalar_ty.name]

    first, equal = core.tensor.__init__, core.dtype.__eq__

    def tensor(self, handle, type):
        facts = type.__dict__.get("_of_tensor")
        if facts is None:
            first(self, handle, type)
            type._of_tensor = self.shape, self.numel, self.dtype
        else:
            self.handle, self.type = handle, type
            self.shape, self.numel, self.dtype = facts

    unwrap = core._unwrap_if_constexpr

    def unwrapped(o):
        return o.value if type(o) is core.constexpr else o if type(o) in plain else unwrap(o)

    plain = {core.tensor, core.dtype, bool, int, float, type(None)}
    core._unwrap_if_constexpr = unwrapped
    core.block_type.__new__, core.block_type.__init__ = new, initialise
    core.block_type.with_element_ty = with_element_ty
    core.tensor.__init__ = tensor
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def _numpy_types(tl, slow):
    """Return a version of `slow` that caches the numpy type of a type by the name of its scalar."""
    known = {}

    def fast(of):
        scalar = of.scalar
        if type(scalar) is not tl.dtype:
            return slow(of)
        if scalar.name not in known:
            known[scalar.name] = slow(scalar)
        return known[scalar.name]

    return fast


def _builder(interpreter):
    handle_of, widest = interpreter.TensorHandle, interpreter._validate_np_data_size
    numpy_type = interpreter._get_np_dtype

    def made(data, dtype):
        """Return a handle whose data is known to fit."""
        handle = object.__new__(handle_of)
        handle.data, handle.dtype, handle.attr = data, dtype, {}
        return handle

    class Splat(handle_of):
        """One value for every place of a block, which is filled only on demand."""

        def __init__(self, one, shape, dtype):
            self.one, self.shape, self.dtype, self.attr = one, shape, dtype, {}

        @functools.cached_property
        def data(self):
            return np.full(self.shape, self.one, dtype=self.one.dtype)

    def operands(*handles):
        """Return their arrays. A splat is just its value if other operands determine the result's shape and layout."""
        blocks = [x.data for x in handles if type(x) is not Splat]
        if len(blocks) == len(handles):
            return blocks
        shape = next(x.shape for x in handles if type(x) is Splat)
        if any(x.shape == shape for x in blocks) and all(x.flags.c_contiguous for x in blocks):
            return [x.one if type(x) is Splat else x.data for x in handles]
        return [x.data for x in handles]

    class Builder(interpreter.InterpreterBuilder):
        def create_splat(self, ret_ty, arg):
            if arg.data.size == 1 and arg.data.dtype == numpy_type(arg.dtype):
                return Splat(arg.data, tuple(ret_ty.shape), arg.dtype.scalar)
            return super().create_splat(ret_ty, arg)

        def binary_op(self, lhs, rhs, op):
            x, y = operands(lhs, rhs)
            if x.dtype == np.bool_ and y.dtype == np.bool_:
                return super().binary_op(lhs, rhs, op)
            output, dtype = op(x, y), lhs.dtype.scalar
            return made(output if widest(output, dtype) else output.astype(numpy_type(dtype)), dtype)

        def ternary_op(self, lhs, rhs, other, op):
            output, dtype = op(*operands(lhs, rhs, other)), other.dtype.scalar
            return made(output if widest(output, dtype) else output.astype(numpy_type(dtype)), dtype)

        def create_masked_load(self, ptrs, mask, other, cache_policy, is_volatile):
            """Load the elements under the mask alone, where they are few: in loops over lists most are none."""
            on, kind = mask.data, ptrs.get_element_ty()
            plain = on.dtype == np.bool_ and on.shape == ptrs.data.shape and on.size >= 256
            if not plain or np.count_nonzero(on) * 8 >= on.size:
                return super().create_masked_load(ptrs, mask, other, cache_policy, is_volatile)
            dtype = numpy_type(kind)
            if other is None:
                loaded = np.zeros(on.shape, dtype)
            else:
                loaded = np.array(np.broadcast_to(other.data, on.shape), dtype)
            at = ptrs.data[on]
            if at.size:
                every, none = np.ones(at.shape, bool), np.zeros(at.shape, dtype)
                loaded[on] = interpreter._interpreter.load(at, every, none, dtype)
            return made(loaded, kind)

    return Builder


def _patch_once(tl, interpreter):
    semantic, patch = interpreter.interpreter_semantic, interpreter._patch_lang

    def patch_attr(obj, name, member, builder, scope):
        inner = getattr(member, "__wrapped__", member)  # @builtin's wrapper requires _semantic, which is given here

        def interpreted(*args, **kwargs):
            kwargs["_semantic"] = semantic
            return inner(*args, **kwargs)

        scope.set_attr(obj, name, interpreted)

    interpreter._patch_attr = patch_attr
    # A stand-in for a function whose globals hold both modules with the language's names: both are patched for good.
    patch(type("Everything", (), {"__globals__": {"tl": tl, "core": tl.core}}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()

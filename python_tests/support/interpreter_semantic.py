# SPDX-License-Identifier: Apache-2.0
"""A faster subclass of TritonSemantic, Triton's class that promotes and broadcasts the operands of an operation.

support/interpreter.py gives it to Triton's interpreter.
"""

import numpy as np

FLOATS, INTEGERS = {"fp32", "fp64"}, {"int32", "int64", "uint32", "uint64"}
# An operation on two operands that both have one of these types is computed in that type.
PLAIN = FLOATS | INTEGERS | {"int1", "uint8"}


def _both(x, y):
    """Return the shape to which two shapes of equal rank are broadcast, or None if there is none."""
    shape = [b if a == 1 else a for a, b in zip(x, y)]
    return shape if len(x) == len(y) and all(b in (1, c) for b, c in zip(y, shape)) else None


def _number(semantic, value, scalar):
    """Return the tensor that a number becomes beside a tensor of this type, or None for cases left to Triton."""
    if type(value) is int and scalar.name in FLOATS | INTEGERS or type(value) is float and scalar.name in FLOATS:
        return semantic._cast_to_computation_type(value, scalar)


def semantic(core, interpreter):
    """Return a class for `interpreter.interpreter_semantic`, a subclass of the one that it has."""
    slow = type(interpreter.interpreter_semantic)
    handle_of, numpy_type = interpreter.TensorHandle, interpreter._get_np_dtype
    promoted, constants = {}, {}

    class Semantic(slow):
        def binary_op_sanitize_overflow_impl(self, lhs, rhs, binary_op):
            if self.builder.options.debug:  # otherwise the result goes to device_assert, which does nothing
                super().binary_op_sanitize_overflow_impl(lhs, rhs, binary_op)

        def computation_type_impl(self, *types):
            names = tuple([x if isinstance(x, bool) else x.name for x in types])
            if names not in promoted:
                promoted[names] = super().computation_type_impl(*types)
            return promoted[names]

        def binary_op_type_checking_impl(self, lhs, rhs, *options, **named):
            x, y = lhs, rhs
            if not named and (len(options) < 3 or options[2]):  # options[2]: arithmetic_check, on by default
                if type(x) is core.tensor and type(y) in (int, float):
                    y = _number(self, y, x.type.scalar)
                elif type(y) is core.tensor and type(x) in (int, float):
                    x = _number(self, x, y.type.scalar)
            if type(x) is core.tensor and type(y) is core.tensor and x.dtype.name == y.dtype.name in PLAIN:
                return self.broadcast_impl_value(x, y)
            return super().binary_op_type_checking_impl(lhs, rhs, *options, **named)

        def broadcast_impl_value(self, lhs, rhs):
            x, y = lhs.type, rhs.type
            if x is y:
                return lhs, rhs
            if not (x.is_block() or y.is_block()):
                return lhs, rhs
            if not y.is_block():
                return lhs, self.splatted(rhs, x)
            if not x.is_block():
                return self.splatted(lhs, y), rhs
            x, y = x.shape.values, y.shape.values
            if x == y:
                return lhs, rhs
            shape = _both(x, y)
            if shape is None:
                return super().broadcast_impl_value(lhs, rhs)
            return self.stretched(lhs, shape), self.stretched(rhs, shape)

        def splatted(self, scalar, block):
            block = block.with_element_ty(scalar.type)
            return self.make_tensor(self.builder.create_splat(block, scalar.handle), block)

        def stretched(self, x, shape):
            if x.type.shape.values == shape:
                return x
            handle = self.builder.create_broadcast(x.handle, shape)
            return self.make_tensor(handle, core.block_type(x.type.scalar, shape))

        def scalar_constant(self, value, dtype):
            if type(value) not in (bool, int, float) or not value:  # 0.0 and -0.0 would share a key
                return super().scalar_constant(value, dtype)
            key = type(value), value, dtype.name
            if key not in constants:
                constants[key] = super().scalar_constant(value, dtype)
            return constants[key]

        def cast(self, input, dst_ty, *options, **named):
            if input.type.scalar is dst_ty.scalar:
                return input
            names = input.type.scalar.name, input.handle.dtype.scalar.name, dst_ty.scalar.name
            if options or named or names[2] == "int1" or not PLAIN.issuperset(names):
                return super().cast(input, dst_ty, *options, **named)
            of = input.type.with_element_ty(dst_ty.scalar)
            return self.make_tensor(handle_of(input.handle.data.astype(numpy_type(of)), of.scalar), of)

    _elementwise(core, interpreter, Semantic)
    return Semantic


# Binary operations by their names in TritonSemantic, with the numpy function of each.
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
BITWISE = {"and_": np.bitwise_and, "or_": np.bitwise_or, "xor_": np.bitwise_xor}
COMPARISONS = {
    "less_than": np.less, "less_equal": np.less_equal, "greater_than": np.greater,
    "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
}  # fmt: skip


def _elementwise(core, interpreter, semantic):
    """Add binary operations of two operands of one type, or of an operand and a number on its right.

    The type must be in FLOATS or INTEGERS, or for bitwise operations in INTEGERS or int1. The number takes the left
    operand's type. Each operation is one numpy call, and the result's type is cached by the pair of types.
    """
    handle_of, numpy_type = interpreter.TensorHandle, interpreter._get_np_dtype

    def common(x, y, plain):
        """Return (y, the broadcast type of x and y, its shape with int1 elements).

        The last two are None for cases left to Triton.
        """
        if x.scalar.name != y.scalar.name or x.scalar.name not in plain:
            return y, None, None
        if x.is_block() and y.is_block():
            shape = _both(x.shape.values, y.shape.values)
            both = shape and core.block_type(x.scalar, shape)
        else:
            both = y if y.is_block() else x
        return y, both, both and both.with_element_ty(core.int1)

    def lone(handle, block):
        """Return a scalar's array for use with a block.

        Return None if the interpreter, which first fills a row-major block with the scalar, would give a result of
        another type or layout.
        """
        ordered = block.flags.c_contiguous and handle.data.dtype == numpy_type(handle.dtype)
        return handle.data if ordered else None

    def fast(name, operation, plain):
        slow, result = getattr(semantic, name), 2 if name in COMPARISONS else 1
        pairs = f"_{name}_of_types"

        def method(self, lhs, rhs, *options, **named):
            if type(lhs) is not core.tensor:
                return slow(self, lhs, rhs, *options, **named)
            x = lhs.type
            if type(rhs) is not core.tensor:
                if type(rhs) not in (int, float):
                    return slow(self, lhs, rhs, *options, **named)
                known = x.__dict__.setdefault("_numbers", {})
                key = type(rhs), rhs or str(rhs)  # 0.0 equals -0.0
                if key not in known:
                    known[key] = _number(self, rhs, x.scalar)
                if known[key] is None:
                    return slow(self, lhs, rhs, *options, **named)
                rhs = known[key]
            y = rhs.type
            known = x.__dict__.setdefault(pairs, {})
            found = known.get(id(y))  # y keeps its id, since `known` holds y
            if found is None:
                found = known[id(y)] = common(x, y, plain)
            if found[result] is None:
                return slow(self, lhs, rhs, *options, **named)
            a, b = lhs.handle, rhs.handle
            if x.is_block() == y.is_block():
                a, b = a.data, b.data
            elif y.is_block():
                a, b = lone(a, b.data), b.data
            else:
                a, b = a.data, lone(b, a.data)
            if a is None or b is None or a.dtype != b.dtype:
                return slow(self, lhs, rhs, *options, **named)
            handle = object.__new__(handle_of)
            handle.data, handle.dtype, handle.attr = operation(a, b), lhs.handle.dtype.scalar, {}
            return core.tensor(handle, found[result])

        setattr(semantic, name, method)

    for name, operation in (ARITHMETIC | COMPARISONS).items():
        fast(name, operation, FLOATS | INTEGERS)
    for name, operation in BITWISE.items():
        fast(name, operation, INTEGERS | {"int1"})

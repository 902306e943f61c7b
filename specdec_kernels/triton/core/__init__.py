# SPDX-License-Identifier: Apache-2.0
"""The parts that the ops share: rows and their four floats, sums over chunks, random numbers, residuals, launches.

Importing this package works around a bug of Triton 3.6 that miscompiles kernels silently. In 3.6, an argument that is
a tuple inside a tuple keeps the type that it had before its constants were filled in. A loop rebuilds values from their
types, so inside a loop such a constant reads as None: ``if pairs.target.PROBS`` is then false, and rows of
probabilities are read as logits. Triton 3.7 makes the types of a function's arguments from their values, which avoids
the bug.
"""

import triton
from triton.compiler.code_generator import ASTFunction
from triton.language import core


def settle(value: core.tuple) -> None:
    """Set the type of a tuple, and of each tuple nested in it, from the values that it holds."""
    for x in value.values:
        if isinstance(x, core.tuple):
            settle(x)
    value.type = core._type_for_tuple_values(value.values, value.type.fields)


def settles(deserialize):
    """Wrap ASTFunction.deserialize, which makes a function's arguments, so that settle() corrects their types."""

    def settled(self, fn):
        arguments = deserialize(self, fn)
        settle(arguments)
        return arguments

    return settled


if triton.__version__.startswith("3.6."):
    ASTFunction.deserialize = settles(ASTFunction.deserialize)

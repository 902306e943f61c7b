# SPDX-License-Identifier: Apache-2.0
"""A fault of Triton 3.6 that makes kernels wrong in silence, mended when this is imported. 3.7 does not have it.

A function's argument that is a tuple in a tuple keeps the type that it had before its constants were set. A loop copies
values by their types, so in a loop such a constant is None: ``if pairs.target.PROBS`` then takes rows of probabilities
for logits.
"""

import triton
from triton.compiler.code_generator import ASTFunction
from triton.language import core


def settle(value: core.tuple) -> None:
    """Give a tuple, and those in it, the types of what they hold."""
    for x in value.values:
        if isinstance(x, core.tuple):
            settle(x)
    value.type = core._type_for_tuple_values(value.values, value.type.fields)


def settles(deserialize):
    """ASTFunction.deserialize, which makes a function's arguments."""

    def settled(self, fn):
        arguments = deserialize(self, fn)
        settle(arguments)
        return arguments

    return settled


if triton.__version__.startswith("3.6."):
    ASTFunction.deserialize = settles(ASTFunction.deserialize)

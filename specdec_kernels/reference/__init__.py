# SPDX-License-Identifier: Apache-2.0
"""The rules again, in float64, one row at a time, as the papers write them: slow, readable, made to check the ops
against.

Every function takes the arguments of the op of the same name (CPU tensors) and returns its result in float64. Functions
that draw also return `margin`: how far the nearest decision was from going the other way, in units of the error a
float32 evaluation may make there. Where `margin > 1` an op must give the reference's tokens; below 1 the two answers
are both right.
"""

import importlib

from ..registry import OPS
from .chain_law import chain_law as chain_law
from .tree_law import tree_law as tree_law

for _op in OPS:  # each shadows the module that it is written in
    globals()[_op] = getattr(importlib.import_module(f"{__name__}.{_op}"), _op)

__all__ = [*OPS, "chain_law", "tree_law"]

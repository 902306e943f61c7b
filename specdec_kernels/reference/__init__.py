# SPDX-License-Identifier: Apache-2.0
"""The rules again, in float64, one row at a time, as the papers write them: slow, readable, made to check the ops
against.

Every function takes the arguments of the op of the same name (CPU tensors) and returns its result in float64.
`banded` has the functions that draw once more. There they also return a `margin`, which says where a float32 op may
give another answer.
"""

import importlib

from ..registry import OPS
from . import banded as banded
from .chain_law import chain_law as chain_law
from .tree_law import tree_law as tree_law

for _op in OPS:  # each shadows the module that it is written in
    globals()[_op] = getattr(importlib.import_module(f"{__name__}.{_op}"), _op)

__all__ = [*OPS, "banded", "chain_law", "tree_law"]

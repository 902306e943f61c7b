# SPDX-License-Identifier: Apache-2.0
"""Reference versions of the ops in float64, one row at a time, written as in the papers.

They are slow and readable, and tests check the ops against them. Each op has a function of the same name here, with the
op's arguments (except `out` and `require_exact`) as CPU tensors. Probabilities are computed in float64. `banded` has
second versions of `sample`, `verify_chain` and `verify_tree`: they also return a `margin`, which shows where a float32
op may give another answer.
"""

import importlib

from ..registry import OPS
from . import banded as banded
from .chain_law import chain_law as chain_law
from .tree_law import tree_law as tree_law

for _op in OPS:  # each function shadows the module of the same name
    globals()[_op] = getattr(importlib.import_module(f"{__name__}.{_op}"), _op)

__all__ = [*OPS, "banded", "chain_law", "tree_law"]

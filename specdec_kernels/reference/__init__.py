# SPDX-License-Identifier: Apache-2.0
"""The rules again, in float64, one row at a time, as the papers write them: slow, readable, made to check the ops
against.

Every function takes the arguments of the op of the same name (CPU tensors) and returns its result in float64. Functions
that draw also return `margin`: how far the nearest decision was from going the other way, in units of the error a
float32 evaluation may make there. Where `margin > 1` an op must give the reference's tokens; below 1 the two answers
are both right.
"""

from .accept import accept
from .build_tree import build_tree
from .chain_law import chain_law
from .kseq_rho import kseq_rho
from .residual import residual
from .row_gap import row_gap
from .row_stats import row_stats
from .sample import sample
from .tree_law import tree_law
from .tree_mask import tree_mask
from .uniforms import uniforms
from .verify_chain import verify_chain
from .verify_tree import verify_tree

__all__ = [
    "accept",
    "build_tree",
    "chain_law",
    "kseq_rho",
    "residual",
    "row_gap",
    "row_stats",
    "sample",
    "tree_law",
    "tree_mask",
    "uniforms",
    "verify_chain",
    "verify_tree",
]

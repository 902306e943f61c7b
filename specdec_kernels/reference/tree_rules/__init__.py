# SPDX-License-Identifier: Apache-2.0
"""The methods of verify_tree. A method reads a Request and takes its decisions from a `chance` object."""

from ...registry import TREE_METHODS
from .greedy import greedy
from .kseq import kseq
from .race import race
from .recursive import recursive, recursive_without_replacement
from .target_only import target_only
from .traversal import traversal

_WALKS = (kseq, recursive, recursive_without_replacement, target_only, greedy, traversal, race)
RULES = {walk.__name__: walk for walk in _WALKS}
assert set(RULES) == set(TREE_METHODS)

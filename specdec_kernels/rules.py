# SPDX-License-Identifier: Apache-2.0
"""The acceptance rules by name: code, parameters with their ranges, and the law or the guarantee of what is emitted.

``TABLE[name]`` is a Rule of specdec_kernels/registry.py, where the rules are written down; ``RULES[name]`` is its code.
"""

from specdec_kernels.registry import INF, LAWS, TREE_METHODS, Parameter, Rule
from specdec_kernels.registry import RULES as TABLE

__all__ = ["INF", "LAWS", "NAMES", "RULES", "TABLE", "Parameter", "Rule", "of_tree_method"]

RULES = {name: rule.code for name, rule in TABLE.items()}
NAMES = {rule.code: name for name, rule in TABLE.items()}


def of_tree_method(method: str) -> tuple[str, ...]:
    """The rules that a method of verify_tree takes: every law, but for those methods that test against the target
    alone."""
    return TREE_METHODS[method].rules

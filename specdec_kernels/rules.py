# SPDX-License-Identifier: Apache-2.0
"""The acceptance rules by name: code, parameters with their ranges, and the output's distribution or guarantee.

``TABLE[name]`` is the Rule that specdec_kernels/registry.py defines, and ``RULES[name]`` is its code. ``LAWS`` are the
rules that define a distribution of the output.
"""

from specdec_kernels.registry import INF, LAWS, TREE_METHODS, Parameter, Rule
from specdec_kernels.registry import RULES as TABLE

__all__ = ["INF", "LAWS", "NAMES", "RULES", "TABLE", "Parameter", "Rule", "of_tree_method"]

RULES = {name: rule.code for name, rule in TABLE.items()}
NAMES = {rule.code: name for name, rule in TABLE.items()}


def of_tree_method(method: str) -> tuple[str, ...]:
    """Return the names of the rules that a method of verify_tree supports.

    They are those of ``LAWS``, except for methods that do not read the draft's rows."""
    return TREE_METHODS[method].rules

# SPDX-License-Identifier: Apache-2.0
"""Greedy verification of a tree: follow the argmax as long as it was drafted. Of equal siblings, the first is taken."""

from .step import descend


def greedy(request, chance):
    """Walk down the tree. The request's rows must be greedy (temperature 0)."""
    return descend(request, chance, lambda step, p, tests: (None, None), request.tests_of_nodes)

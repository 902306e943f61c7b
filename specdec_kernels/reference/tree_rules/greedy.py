# SPDX-License-Identifier: Apache-2.0
"""Greedy decoding on a tree: follow the argmax while it was drafted; the first of equal siblings wins."""

from .step import descend


def greedy(request, chance):
    """The rows of the request must be greedy laws (temperature 0)."""
    return descend(request, chance, lambda step, p, tests: (None, None), request.tests_of_nodes)

# SPDX-License-Identifier: Apache-2.0
"""The race on a tree: the winner at each visited node is emitted, and a child with this token is visited next."""

import math

from ..status import INVALID_ROW
from .step import Step


def race(request, chance):
    """Walk down from the root. The tree decides only how many tokens are emitted; the tokens do not depend on it."""
    step = Step(request, chance)
    while True:
        node, depth = step.node, len(step.tokens)
        p = request.target(node)
        if not p.valid or not (p.p > 0).any():
            return step.emit(p.fallback, math.nan, INVALID_ROW)
        tests = request.tests_of_nodes(node, depth)
        if not p.greedy:
            step.inside(tests)  # sets the status
        y = p.fallback if p.greedy else chance.race(p, request.noise(node, depth))
        child = next((child for child, _ in tests if step.token(child) == y), None)
        if child is None:
            return step.emit(y, p.log(y))
        step.take(child, p)

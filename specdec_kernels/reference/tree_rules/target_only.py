# SPDX-License-Identifier: Apache-2.0
"""Acceptance by the target's law alone, for trees of any making (SGLang's tree kernel with both thresholds 1).

One coin falls on [0, 1); the children's probabilities p(c) are laid from 0 on, one after the other, and the child it
falls on is accepted: each with probability exactly p(c), whatever drafted it. Else the token is drawn from p without
the children. The rule "thresholds" divides the running sum by threshold_acc and accepts every child of p(c) >=
threshold_single it comes to.
"""

import math

from .step import descend


def target_only(request, chance):
    """The coin of a visited parent stands in the parent's column. A second child of the same token is skipped."""
    return descend(request, chance, on_node, request.tests_of_nodes)


def on_node(step, p, tests):
    w, seen = p.p.copy(), 0.0
    single, acc = step.request.rule[1] or (1.0, 1.0)
    gone = set()
    for child, _ in tests:
        t = step.token(child)
        if t in gone:
            continue
        if math.isnan(p.p[t]):
            return None, None
        edge = seen + p.p[t]
        if step.chance.reaches(p.p[t], single) or step.chance.below(step.node, edge / acc, min(seen / acc, 1.0)):
            return child, None
        seen = edge
        gone.add(t)
        w[t] = 0.0
    return None, w

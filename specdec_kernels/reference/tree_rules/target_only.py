# SPDX-License-Identifier: Apache-2.0
"""Acceptance by the target's distribution alone, for trees drafted in any way (SGLang's tree kernel, thresholds 1).

The children have adjoining intervals of lengths p(c), starting at 0, and one uniform is drawn. The child whose interval
contains the uniform is accepted: each with probability exactly p(c), however it was drafted. If the uniform is in no
interval, the token is drawn from p without the children. The rule "thresholds" divides the running sum by
threshold_acc, and also accepts a child if p(c) >= threshold_single.
"""

import math

from .step import descend


def target_only(request, chance):
    """Walk down from the root. Node i uses the uniform in column i. A later child with the same token is skipped."""
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

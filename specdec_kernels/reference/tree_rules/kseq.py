# SPDX-License-Identifier: Apache-2.0
"""Draft-sequence selection with K-SEQ (SpecTr, Sun et al. 2023; in the paper p is the draft and q the target).

At a node with k surviving drafts, drawn i.i.d. from q, drafts are tested in order. Each is accepted with probability
min(1, p / (rho q)), with the best rho for k. The drafts of the accepted token survive. If none is accepted, the token
is drawn from norm(p - c min(q, p / rho)), c = p_acc / beta. At the best rho this is norm((p - rho q)+).
"""

import math
from functools import singledispatch

import numpy as np

from ..kseq_rho import best_rho
from ..law import normalised
from ..status import INVALID_DRAFT, INVALID_ROW
from .step import descend


def kseq(request, chance):
    """Verify drafts drawn i.i.d. from one distribution per node.

    A child that was drawn from another distribution than its first sibling is skipped.
    """
    return descend(request, chance, on_node, request.tests_of_drafts)


def on_node(step, p, tests):
    if not tests or not p.valid:
        return None, None
    p = np.maximum(p.p, 0.0)  # negative entries count as 0
    first = tests[0][0]
    same = [test for test in tests if step.request.one_law(first, test[0])]
    if len(same) < len(tests):
        step.status |= INVALID_DRAFT
    draft = step.draft(first)
    if not draft.valid:
        return None, None
    q = draft.q
    if not (draft.whole and (q > 0).any() and 0 < p.sum() < math.inf):
        step.status |= INVALID_ROW | INVALID_DRAFT
        return None, None
    rho = step.request.once((step.node, len(same)), lambda: best(p, q, len(same)))
    for child, column in same:
        t = step.token(child)
        step.draft(child)  # sets the status if q has no probability of the token
        if step.chance.accepts(column, p[t], q[t], rho):
            return child, None
    return None, residual(p, q, rho)


@singledispatch
def best(p, q, k):
    """Return rho*."""
    return best_rho(normalised(p), normalised(q), k)[0]


@singledispatch
def residual(p, q, rho):
    return np.maximum(p - rho * q, 0.0)

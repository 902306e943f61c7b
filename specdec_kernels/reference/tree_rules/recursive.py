# SPDX-License-Identifier: Apache-2.0
"""Recursive rejection sampling (SpecInfer, Miao et al. 2023; without replacement: Sequoia, Chen et al. 2024).

At a node, r = p. Drafts are tested in the order they were drawn: x ~ q is accepted with probability
min(1, r(x) / q(x)). If it is rejected, r becomes norm((r - q)+) and the next draft is tested. After the last one the
token is drawn from r.
"""

import math

from .step import descend


def recursive(request, chance):
    """Verify children drawn independently. Duplicates are tested as often as they were drawn, in draft order."""
    return descend(request, chance, with_replacement, request.tests_of_drafts)


def recursive_without_replacement(request, chance):
    """Verify distinct children, each drawn from its row without the earlier siblings.

    I.i.d. draws that are merged in order of first appearance are such children too.
    """
    return descend(request, chance, without_replacement, request.tests_of_nodes)


def with_replacement(step, p, tests):
    r = p.p
    for child, column in tests:
        t = step.token(child)
        if math.isnan(r[t]):
            return None, None
        draft = step.draft(child)
        if draft.valid and step.chance.accepts(column, r[t], draft.q[t]):
            return child, None
        if not p.valid:
            return None, None
        if draft.valid:
            r = step.reduce(r, draft.q)
    return None, r


def without_replacement(step, p, tests):
    r, gone = p.p, []
    for child, column in tests:
        t = step.token(child)
        if t in gone:
            continue  # a duplicate cannot have been drawn; skipping it gives the same result as merging
        if math.isnan(r[t]):
            return None, None
        draft, q = step.draft_without(child, gone)
        if draft.valid and step.chance.accepts(column, r[t], q[t]):
            return child, None
        if not p.valid:
            return None, None
        if draft.valid and (q > 0).any():
            r = step.reduce(r, q)
        gone.append(t)
    return None, r

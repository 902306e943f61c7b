# SPDX-License-Identifier: Apache-2.0
"""Draft-sequence selection with K-SEQ (SpecTr, Sun et al. 2023; there p is the draft and q the target).

At a node with k surviving drafts, i.i.d. from q: each in draft order is accepted with probability min(1, p / (rho q)),
rho the best one for k; those that drafted the accepted token survive. If none is accepted the token is drawn from
norm(p - c min(q, p / rho)), c = p_acc / beta, which at the best rho is norm((p - rho q)+).
"""

import math

import numpy as np

from ..kseq_rho import best_rho, rho_of_laws
from ..law import Law
from ..status import INVALID_DRAFT, INVALID_ROW
from .step import descend

LEVEL = 1e-6  # the residual |f(rho)| that an op's search may leave, on the valid side


def kseq(request, chance):
    """Drafts drawn i.i.d. from one law per node. A child from another law than its first sibling's is skipped."""
    return descend(request, chance, on_node, request.tests_of_drafts)


def on_node(step, p, tests):
    if not tests or not p.valid:
        return None, None
    p = p._replace(p=np.maximum(p.p, 0.0))  # what is negative counts 0
    first = tests[0][0]
    same = [test for test in tests if step.request.one_law(first, test[0])]
    if len(same) < len(tests):
        step.status |= INVALID_DRAFT
    draft = step.draft(first)
    if not draft.valid:
        return None, None
    q = Law(draft.q, draft.err, draft.whole, False, 0)
    low, rho, high, c = step.request.once(
        (step.node, len(same)), lambda: rho_and_band(p, q, len(same), step.chance.banded)
    )
    if math.isnan(c):
        step.status |= INVALID_ROW | INVALID_DRAFT
        return None, None
    rho_err = max(rho - low, high - rho)
    for child, column in same:
        t = step.token(child)
        step.draft(child)  # flags what q holds no probability for
        if step.chance.accepts(column, p.p[t], q.p[t], p.err[t], rho * q.err[t] + q.p[t] * rho_err, rho):
            return child, None
    w = np.maximum(p.p - rho * q.p, 0.0)
    other = np.maximum(p.p - c * np.minimum(q.p, p.p / high), 0.0)
    err = p.err + high * q.err
    err[rho * q.p - p.p > err] = 0.0
    return None, (w, err + np.abs(other - w))


def rho_and_band(p, q, k, banded):
    """rho*, between the lowest and the highest rho that an op may find, and c = p_acc / beta at the highest.

    df = -(rho - k (1 - beta)^(k - 1)) dbeta - beta drho, and dbeta is at most the errors of the smaller of q and p /
    rho.
    """
    rho, beta, _ = rho_of_laws(p, q, k)
    if math.isnan(beta):  # a probability row of q that is no law
        return rho, rho, rho, math.nan
    if not banded:
        return rho, rho, rho, rho
    a, b = p.p / p.p.sum(), q.p / q.p.sum()
    beta_err = np.where(b < a / rho, q.err, p.err / rho).sum()
    f_err = abs(rho - k * (1 - beta) ** (k - 1)) * beta_err
    low, _, _ = best_rho(a, b, k, f_err)
    high, beta_high, p_acc = best_rho(a, b, k, -f_err - LEVEL)
    return low, rho, high, p_acc / beta_high if beta_high > 0 else high

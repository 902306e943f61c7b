# SPDX-License-Identifier: Apache-2.0
"""Traversal verification: from the leaves to the root (Weng et al. 2025, arXiv 2505.12398). A single path is block
verification.

Weights: w(root) = 1, w(c) = min(1, w(n) p_n(c) / q_n(c)). The first leaf in depth-first order (siblings in draw order)
is accepted with probability w; the root always. Else it leaves the tree and its parent n changes:
r = (w(n) p_n - q_n)+, s = sum r, p_n = r / s, w(n) = s / (s + 1 - w(n)) (0 if 0/0), q_n = q_n without the token,
renormalised.
"""

import math

import numpy as np

from ..status import EMPTY_RESIDUAL, INVALID_ROW
from .greedy import greedy
from .step import Step, leftover, normalised


class Frame:
    """A node on the path from the root to the leaf under test."""

    def __init__(self, node, p, w, err, children, q=None, q_err=None, drawn=True, pi=None):
        self.node, self.p, self.w, self.err, self.children = node, p, w, err, children
        self.q, self.q_err, self.drawn = (
            q,
            q_err,
            drawn,
        )  # the law it was drawn from; drawn False: none, nothing to take away
        self.pi = pi or p
        self.r, self.r_err, self.gone = (
            self.pi.p,
            self.pi.err,
            [],
        )  # its children's law as it stands, and the children that left


def traversal(request, chance):
    """Children as recursive_without_replacement wants them. A greedy root makes the request greedy."""
    step = Step(request, chance)
    p = step.target(0)
    if p.greedy and request.rule[0] in ("exact", "lossy"):
        return greedy(request, chance)
    path = [opened(step, 0, p, 1.0, 0.0, 0)]
    while True:
        top = path[-1]
        if top.children:
            child = first_child(step, top, len(path))
            if child is None:
                continue
            path.append(child)
        elif len(path) == 1 or chance.below(top.node, top.w, top.err):
            return accept(step, path)
        else:
            path.pop()
            remove(step, path[-1], top, len(path) == 1)


def opened(step, node, p, w, err, depth, *drawn):
    tests = step.inside(step.request.tests_of_nodes(node, depth))
    if tests and not (p.valid or p.gathered):
        step.status |= INVALID_ROW
        tests = []
    children = [child for child, _ in tests]
    return Frame(node, p, w, err, children, *drawn, pi=step.pi(node, p, children))


def first_child(step, top, depth):
    """The first remaining child as a frame, or None where its weight is 0 and it has left already."""
    child = top.children.pop(0)
    t = step.token(child)
    if t in top.gone:
        return None
    if math.isnan(top.r[t]):
        top.children = []
        return None
    draft, q, q_err = step.draft_without(child, top.gone)
    w, err = 0.0, 0.0
    if draft.valid and q[t] > 0 and top.r[t] > 0:
        x = top.w * top.r[t] / q[t]
        x_err = (top.err * top.r[t] + top.w * top.r_err[t] + x * q_err[t]) / q[t]
        w, err = min(1.0, x), 0.0 if x - x_err >= 1 else x_err
    known = (q, q_err, draft.valid and bool(q.any()))
    if w == 0:
        remove(step, top, Frame(child, top.p, 0.0, 0.0, [], *known), depth == 1)
        return None
    return opened(step, child, step.target(child), w, err, depth, *known)


def remove(step, top, child, root):
    top.gone.append(step.token(child.node))
    if not child.drawn:
        return
    if not top.p.valid:
        top.children = []
        return
    r = np.where(top.r > 0, top.r, 0.0)
    rest, rest_err = leftover(top.w * r, top.err * r + top.w * top.r_err, child.q, child.q_err)
    s, s_err, w = rest.sum(), rest_err.sum(), top.w
    if s > 0:
        top.r, top.r_err = normalised(rest, rest_err)
    elif root:  # rounding alone gets here: the root's last law stays
        step.status |= EMPTY_RESIDUAL
    if root and s < 2 * s_err:
        step.chance.note(0.0)
    below = s + 1 - w
    top.w = s / below if below > 0 else 0.0
    top.err = ((1 - w) * s_err + s * top.err) / below**2 if below > 0 else 0.0


def accept(step, path):
    for parent, child in zip(path, path[1:]):
        step.take(child.node, parent.p)
    top = path[-1]
    return step.end(top.p, (top.r, top.r_err) if top.gone else None, top.pi)

# SPDX-License-Identifier: Apache-2.0
"""Traversal verification, from the leaves to the root (Weng et al. 2025, arXiv 2505.12398).

On a single path it is block verification. The weights are w(root) = 1, w(c) = min(1, w(n) p_n(c) / q_n(c)). The first
leaf in depth-first order (siblings in draw order) is accepted with probability w; the root always is. A rejected leaf
is removed, and its parent n changes:

    r = (w(n) p_n - q_n)+,  s = sum r
    p_n = r / s,  w(n) = s / (s + 1 - w(n)) (0 if 0/0)
    q_n = q_n without the token, renormalised
"""

import math

import numpy as np

from ..block import share
from ..law import normalised, positive
from ..residual import leftover
from ..status import EMPTY_RESIDUAL, INVALID_ROW
from .greedy import greedy
from .step import Step


class Frame:
    """A node on the path from the root to the leaf under test."""

    def __init__(self, node, p, w, children, q=None, drawn=True, pi=None):
        self.node, self.p, self.w, self.children = node, p, w, children
        self.q, self.drawn = q, drawn  # its token was drawn from q; drawn=False: q is invalid or empty, not subtracted
        self.pi = pi or p
        self.r, self.gone = self.pi.p, []  # the current p_n, and the tokens of removed children


def traversal(request, chance):
    """Verify a tree with distinct children, as drafted for recursive_without_replacement, from the leaves to the root.

    If the root's row is greedy and the rule is exact or lossy, the whole request is verified by `greedy`.
    """
    step = Step(request, chance)
    p = request.target(0)
    if p.greedy and request.rule[0] in ("exact", "lossy"):
        return greedy(request, chance)
    path = [opened(step, 0, p, 1.0, 0)]
    while True:
        top = path[-1]
        if top.children:
            child = first_child(step, top, len(path))
            if child is None:
                continue
            path.append(child)
        elif len(path) == 1 or chance.below(top.node, top.w):
            return accept(step, path)
        else:
            path.pop()
            remove(step, path[-1], top, len(path) == 1)


def opened(step, node, p, w, depth, *drawn):
    tests = step.inside(step.request.tests_of_nodes(node, depth))
    if tests and not (p.valid or p.gathered):
        step.status |= INVALID_ROW
        tests = []
    children = [child for child, _ in tests]
    return Frame(node, p, w, children, *drawn, pi=step.pi(node, p, children))


def first_child(step, top, depth):
    """Take the first remaining child. Return its Frame, or None if it is a duplicate, its p is NaN or its weight is 0.

    A child of weight 0 is removed here. After a NaN, all remaining children are dropped.
    """
    child = top.children.pop(0)
    t = step.token(child)
    if t in top.gone:
        return None
    if math.isnan(top.r[t]):
        top.children = []
        return None
    draft, q = step.draft_without(child, top.gone)
    possible = draft.valid and q[t] > 0 and top.r[t] > 0
    w = np.minimum(1.0, top.w * top.r[t] / q[t]) if possible else 0.0
    known = (q, draft.valid and bool((q > 0).any()))
    if w == 0:
        remove(step, top, Frame(child, top.p, 0.0, [], *known), depth == 1)
        return None
    return opened(step, child, step.request.target(child), w, depth, *known)


def remove(step, top, child, root):
    top.gone.append(step.token(child.node))
    if not child.drawn:
        return
    if not top.p.valid:
        top.children = []
        return
    rest = leftover(top.w * positive(top.r), child.q)
    if step.chance.has_mass(rest) if root else rest.sum() > 0:
        top.r = normalised(rest)
    elif root:  # only rounding causes this: the root keeps its last distribution
        step.status |= EMPTY_RESIDUAL
    top.w = share(rest.sum(), top.w)


def accept(step, path):
    for parent, child in zip(path, path[1:]):
        step.take(child.node, parent.p)
    top = path[-1]
    return step.end(top.p, top.r if top.gone else None, top.pi)

# SPDX-License-Identifier: Apache-2.0
"""The two rows of one position as the rules see them, and the law that a rule makes of them."""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..law import EPS, SUM_EPS, Law, clean_q
from ..residual import leftover


class Pair:
    """p, q: Laws as sampled; unscaled(): (p1, q1), Laws of the same rows at T = 1 without filters. All of one width,
    vocab of it the target's: pi has no mass behind it."""

    def __init__(self, p: Law, q: Law, unscaled=None, vocab=None):
        self.target, self.draft = p, q
        self.p, self.p_err = np.where(p.p > 0, p.p, 0.0), p.err
        self.q, self.q_err = clean_q(q.p), q.err
        self.inside = np.arange(len(p.p)) < (len(p.p) if vocab is None else vocab)
        self._unscaled = unscaled or (lambda: (p, q))

    @cached_property
    def unscaled(self):
        return self._unscaled()

    @property
    def p1(self):
        return self.unscaled[0]

    @property
    def q1(self):
        return self.unscaled[1]

    def tv(self):
        """(TV, its error)."""
        w, err = leftover(self.p, self.p_err, self.q, self.q_err)
        return w.sum(), err.sum() + SUM_EPS * w.sum()


class Mix(NamedTuple):
    """pi = a p + b q, token by token."""

    a: np.ndarray | float
    b: np.ndarray | float
    err: np.ndarray | float = 0.0  # what pi may be off by, beyond the errors of p and q
    margin: float = math.inf  # how far the rule was from deciding otherwise, in error bounds

    @property
    def defers(self):
        return np.ndim(self.b) == 0 and self.a == 1 and self.b == 0

    @property
    def keeps(self):
        return np.ndim(self.b) == 0 and self.a == 0 and self.b == 1

    def law(self, pair):
        """(pi, its error)."""
        pi, err = self.a * pair.p + self.b * pair.q, self.a * pair.p_err + self.b * pair.q_err + self.err
        return np.where(pair.inside, pi, 0.0), np.where(pair.inside, err, 0.0)

    def leftover(self, pair, r=1.0, r_err=0.0):
        """(r pi - q)+ and its error, so written that nothing cancels where r = 1 and b = 1."""
        pi, _ = self.law(pair)
        x = r * self.a * pair.p - (1 - r * self.b) * pair.q
        err = (
            r * self.a * pair.p_err + np.abs(1 - r * self.b) * pair.q_err + r * self.err + (r_err + EPS * (r < 1)) * pi
        )
        err = np.where(-x > err, 0.0, err)  # far below zero, no rounding makes a weight of it
        return np.maximum(x, 0.0), err


DEFER = Mix(1.0, 0.0)
KEEP = Mix(0.0, 1.0)

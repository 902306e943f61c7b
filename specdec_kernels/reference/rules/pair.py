# SPDX-License-Identifier: Apache-2.0
"""The two rows of one position (Pair), and the distribution that a rule computes from them (Mix)."""

from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..law import Law, clean_q, positive


class Pair:
    """The target's and the draft's row of one position.

    p, q: Laws as sampled. unscaled(): (p1, q1), the Laws of the same rows at T = 1 without filters. All have one width.
    The target has the first `vocab` ids, and pi has no mass on later ones.
    """

    def __init__(self, p: Law, q: Law, unscaled=None, vocab=None):
        self.target, self.draft = p, q
        self.p, self.q = positive(p.p), clean_q(q.p)
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


class Mix(NamedTuple):
    """The mixture pi = a p + b q, token by token."""

    a: np.ndarray | float
    b: np.ndarray | float

    @property
    def defers(self):
        return np.ndim(self.b) == 0 and self.a == 1 and self.b == 0

    @property
    def keeps(self):
        return np.ndim(self.b) == 0 and self.a == 0 and self.b == 1

    def law(self, pair):
        """Return pi."""
        pi = self.a * pair.p + self.b * pair.q
        pi[~pair.inside] = 0.0
        return pi

    def leftover(self, pair, r=1.0):
        """Return (r pi - q)+, in a form without cancellation at r = 1 and b = 1."""
        return np.maximum(r * self.a * pair.p - (1 - r * self.b) * pair.q, 0.0)

    def ceded(self, pair):
        """Return the Mix in which q's mass on ids outside the target's vocabulary goes to p."""
        return self._replace(a=self.a + float(self.b) * pair.q[~pair.inside].sum())


DEFER = Mix(1.0, 0.0)
KEEP = Mix(0.0, 1.0)

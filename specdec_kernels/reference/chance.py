# SPDX-License-Identifier: Apache-2.0
"""Sources of a verification walk's random decisions: given uniforms, or all branches in turn with their probabilities.

A rule takes every random decision from a `chance` object and never reads a uniform itself. The same rule can therefore
be checked with given uniforms, enumerated for its exact distribution, and measured for its margins in banded/.
"""

import math

import numpy as np
import torch

from ..registry import DOMAIN_ACCEPT, DOMAIN_FINAL
from .accept import accepts
from .law import Q_MAX, draw, in_float64
from .race import keys_of, ranked
from .rules import mix_of
from .sides import Side
from .uniforms import given
from .uniforms import uniforms as philox_uniforms


class Chance:
    """Base class, with the decisions about rows that need no uniform."""

    side = Side  # converts a call's rows to Laws

    def reaches(self, x, edge):
        return x >= edge

    def has_mass(self, w):
        return 0 < w.sum() < math.inf

    def mix(self, pair, rule, alpha):
        return mix_of(pair, rule, alpha)


class GivenUniforms(Chance):
    """The uniforms of one request: one per test, and one for the final draw."""

    def __init__(self, tests, final):
        self.tests, self.final = tests, final

    @classmethod
    def of_requests(cls, op, B, columns, seed, offset, uniforms):
        """Return an object for each of B requests with `columns` tests.

        The uniforms are the given ones, or are computed from seed and offset. Without either, all are 0.
        """
        if uniforms is None and seed is not None:
            tests = philox_uniforms(seed, offset, columns, DOMAIN_ACCEPT)
            uniforms = torch.cat([tests, philox_uniforms(seed, offset, 1, DOMAIN_FINAL)], 1)
        u = np.zeros((B, columns + 1)) if uniforms is None else given(in_float64(uniforms))
        if u.shape != (B, columns + 1):
            raise ValueError(f"{op}: uniforms must have shape [B={B}, {columns}+1], got {list(u.shape)}")
        return [cls(row[:-1], float(row[-1])) for row in u]

    def accepts(self, column, p, q, lenience=1.0):
        """Accept with probability min(1, p / (lenience * q)); a q that is not a probability rejects."""
        return accepts(p, q, float(self.tests[column]) * lenience)

    def below(self, column, edge, seen=0.0):
        """Return whether the uniform is below `edge`. `seen`: it is known not to be below this."""
        return float(self.tests[column]) < edge

    def draw(self, w):
        return draw(w, self.final)

    def race(self, law, noise, place=0):
        """Return the id at `place` (from 0) in the race with this noise (seed, position); -1 if fewer ids have mass."""
        keys = keys_of(law.p, law.log_p, *noise)
        order = ranked(keys)
        return int(order[place]) if place < len(order) else -1


class Branches(Chance):
    """One path through all decisions. script: the branch to take at each decision. After its end, the first branch is
    taken."""

    def __init__(self, script):
        self.script, self.probability, self.taken, self.open = script, 1.0, [], []
        self.columns = []  # the columns of the uniforms used, in order

    def choose(self, options):
        """Take a branch. options: [(outcome, probability)]; those below 1e-15 are dropped as rounding errors."""
        options = [option for option in options if option[1] > 1e-15]
        i = self.script[len(self.taken)] if len(self.taken) < len(self.script) else 0
        if len(self.taken) >= len(self.script):
            self.open += [(*self.taken, j) for j in range(1, len(options))]
        self.taken.append(i)
        outcome, probability = options[i]
        self.probability *= probability
        return outcome

    def test(self, column, chance):
        self.columns.append(column)
        chance = min(max(chance, 0.0), 1.0)
        return self.choose([(True, chance), (False, 1 - chance)])

    def accepts(self, column, p, q, lenience=1.0):
        return self.test(column, p / (lenience * min(q, 1.0)) if 0 < q <= Q_MAX and p > 0 else 0.0)

    def below(self, column, edge, seen=0.0):
        return self.test(column, (edge - seen) / (1 - seen) if seen < 1 else 0.0)

    def draw(self, w):
        return self.choose(list(enumerate((w / np.sum(w)).tolist())))

    def race(self, law, noise, place=None):
        return self.draw(law.p)


def outcomes(run):
    """Yield every (result, probability) of run(chance). run must take all random decisions from `chance`."""
    scripts = [()]
    while scripts:
        chance = Branches(scripts.pop())
        result = run(chance)
        scripts += chance.open
        yield result, chance.probability

# SPDX-License-Identifier: Apache-2.0
"""Exact distribution of the tokens emitted by one verified step, by enumeration: small vocabularies only."""

import itertools
import math
from collections import defaultdict

import numpy as np

from .chain import Chain
from .chance import outcomes
from .law import padded
from .rules import LAWS, resolved
from .rules.one_step import law_of_row, one_step, pi_of


def chain_law(p, q, gamma, *, method="token", rule="exact", alpha=None, p1=None, q1=None, end_row=False):
    """Return the distribution of the tokens that one step emits, {tokens: probability}.

    Of these tokens, the last is the final one, and the others are accepted drafts. The drafts are enumerated, and the
    uniforms are integrated analytically. p(prefix) -> [V] float64. q(prefix) -> [Vq] float64, or one id (a
    one-hot draft). p1, q1: the same rows unscaled (T = 1, no filters), by default p and q. alpha: the rule's
    parameters, a number or a tuple; None: its defaults. end_row: whether the draft has a row after its last draft too.

    Token method: x ~ q is accepted with probability accept(x), so the draft x is emitted with probability
    q(x) accept(x). With the remaining mass of q, x is rejected and replaced by a draw from the rule's final
    distribution. Block method: Pr[tau >= i | d] and the distributions of the final token are as in block.py.
    """
    if method == "race":
        raise ValueError("chain_law: method must be 'token' or 'block', got 'race': its tokens do not depend on drafts")
    rows = RowsAfter(p, q, p1, q1, *resolved("chain_law", method, rule, alpha))
    return {"token": token_law, "block": block_law}[method](rows, gamma, end_row)


class RowsAfter:
    """The rows after each prefix, as arrays, and the rule."""

    def __init__(self, p, q, p1, q1, rule, alpha):
        self.rule, self.alpha = rule, alpha
        self.p = lambda prefix: np.asarray(p(prefix), dtype=np.float64)
        self._q, self._p1, self._q1 = q, p1 or p, q1 or q

    def q(self, prefix):
        return self.wide(self._q(prefix), prefix)

    def wide(self, row, prefix):
        return np.eye(1, len(self.p(prefix)), row)[0] if np.ndim(row) == 0 else np.asarray(row, dtype=np.float64)

    def all(self, prefix):
        return (
            self.p(prefix),
            self.q(prefix),
            self.rule,
            self.alpha,
            self._p1(prefix),
            self.wide(self._q1(prefix), prefix),
        )

    def last(self, prefix, end_row):
        """Return the distribution of the token after the last draft."""
        return pi_of(*self.all(prefix)) if end_row and self.rule in LAWS else self.p(prefix)


def token_law(rows, gamma, end_row):
    law = defaultdict(float)

    def visit(prefix, mass):
        if len(prefix) == gamma:
            return add(law, prefix, mass, rows.last(prefix, end_row))
        q, step = rows.q(prefix), one_step(*rows.all(prefix))
        q = np.pad(q, (0, len(step.accept) - len(q)))
        for x in np.flatnonzero(q * step.accept):
            visit(prefix + (int(x),), mass * q[x] * step.accept[x])
        left = q * (1 - step.accept)
        left[left < 1e-15] = 0.0  # rounding
        add(law, prefix, mass, left @ step.final)

    visit((), 1.0)
    return dict(law)


def add(law, prefix, mass, row):
    for y in np.flatnonzero(mass * row):
        law[prefix + (int(y),)] += mass * row[y]


def block_law(rows, gamma, end_row):
    law = defaultdict(float)

    def visit(drafts, mass, r, h, finals):
        """Visit a node after i drafts, given r_i, h_1 .. h_{i-1} and the final distributions at tau = 0 .. i - 1."""
        if len(drafts) == gamma:
            left = mass
            for tau, chance in [*enumerate([*h, r], 1)][:gamma][::-1]:
                add(law, drafts[:tau], left * chance, finals[tau] if tau < gamma else rows.last(drafts, end_row))
                left *= 1 - chance
            return add(law, (), left, finals[0] if gamma else rows.last((), end_row))
        q, pi = rows.q(drafts), pi_of(*rows.all(drafts))
        q = np.pad(q, (0, len(pi) - len(q)))
        rest = np.maximum(r * pi - q, 0.0)
        s = rest.sum() if rest.sum() > 1e-15 else 0.0
        final = rest / s if s > 0 else pi / pi.sum()
        below = s + 1 - r
        stop = [*h, (s / below if below > 0 else 1.0)] if drafts else h
        for x in np.flatnonzero(q):
            visit(drafts + (int(x),), mass * q[x], min(1.0, r * pi[x] / q[x]), stop, [*finals, final])

    visit((), 1.0, 1.0, [], [])
    return dict(law)


def walked_chain_law(p, q, gamma, *, method="token", rule="exact", alpha=None, p1=None, q1=None, end_row=False):
    """Return chain_law, computed by running the reference of verify_chain on every tuple of drafts and enumerating all
    of its decisions."""
    from .verify_chain import METHODS

    rows = RowsAfter(p, q, p1, q1, *resolved("chain_law", method, rule, alpha))
    V = len(p(()))
    wide = max(V, len(rows.q(())))
    law = defaultdict(float)
    for drafts in itertools.product(range(wide), repeat=gamma):
        mass = math.prod(dict(enumerate(rows.q(drafts[:i]))).get(d, 0.0) for i, d in enumerate(drafts))
        if mass == 0:
            continue

        def known(row, drafts=drafts):
            return lambda i: padded(
                law_of_row(np.asarray(rows.wide(row(drafts[:i]), drafts[:i]), dtype=np.float64)), wide
            )

        sides = [known(row) for row in (rows.p, rows._q, rows._p1, rows._q1)]

        def walk(chance, drafts=drafts, sides=sides):
            return METHODS[method](Chain(drafts, *sides, V, rows.rule, rows.alpha, chance, end_row=end_row))

        for chain, probability in outcomes(walk):
            law[tuple(chain.tokens)] += mass * probability
    return dict(law)

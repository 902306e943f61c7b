# SPDX-License-Identifier: Apache-2.0
"""The walk down a tree: its output, the reduction after a rejection, and the final draw."""

import math

from ..law import Q_MAX, Law, normalised, positive, without
from ..residual import leftover
from ..rules import LAWS, ROW_RULES, Pair
from ..status import EMPTY_RESIDUAL, INVALID_DRAFT, INVALID_ROW


class Step:
    """The output of one request. path starts with the root; len(tokens) = len(path) once the final token is drawn."""

    def __init__(self, request, chance):
        self.request, self.chance = request, chance
        self.path, self.tokens, self.logprobs, self.status = [0], [], [], INVALID_DRAFT if request.bad() else 0

    @property
    def node(self):
        return self.path[-1]

    def token(self, child):
        return self.request.tokens[child]

    def pi(self, node, p, children):
        """Return the distribution that the rule uses instead of p at a node.

        It is computed from p and the row that the node's first child was drawn from. If either is invalid, it is p.
        """
        rule, alpha = self.request.rule
        if rule not in LAWS or rule == "exact" or (p.greedy and rule == "lossy") or not children:
            return p
        child = children[0]
        draft = self.request.draft(child)
        if not (p.valid and draft.whole):
            return p
        unscaled = self.request.unscaled and (lambda: self.request.unscaled(node, child))
        q = Law(draft.q, True, draft.hot is not None, draft.hot or 0)
        pair = Pair(p, q, unscaled, self.request.vocab)
        mix = self.chance.mix(pair, rule, alpha)
        if mix.defers:
            return p
        if rule in ROW_RULES and mix.keeps and q.greedy:
            return p._replace(p=q.p, greedy=True, fallback=q.fallback)
        return p._replace(p=mix.law(pair), greedy=False)

    def draft(self, child):
        """Return the Draft of the child. Set the status if the child cannot have been drawn from it."""
        return self.draft_without(child, [])[0]

    def draft_without(self, child, gone):
        """Return the Draft of the child, and its q without the tokens `gone` (all zero if nothing is left).

        Set the status as draft() does.
        """
        draft = self.request.draft(child)
        q = without(draft.q, draft.log_q, gone) if gone else draft.q
        if not draft.valid:
            self.status |= INVALID_ROW | INVALID_DRAFT
        elif not 0 < q[self.token(child)] <= Q_MAX:
            self.status |= INVALID_DRAFT
        return draft, q

    def is_inside(self, child):
        return 0 <= self.token(child) < self.request.wide

    def inside(self, tests):
        """Return the tests whose token is in a vocabulary; the others are skipped, as if they had not been drafted."""
        kept = [(child, column) for child, column in tests if self.is_inside(child)]
        if len(kept) < len(tests):
            self.status |= INVALID_DRAFT
        return kept

    def take(self, child, p):
        self.path.append(child)
        self.tokens.append(self.token(child))
        self.logprobs.append(p.log(self.token(child)))

    def reduce(self, r, q):
        """Return norm((r - q)+). If nothing is left, which only rounding can cause, return r."""
        r = positive(r)
        w = leftover(r, q)
        if self.chance.has_mass(w):
            return normalised(w)
        self.status |= EMPTY_RESIDUAL
        return r

    def end(self, p, rest, pi):
        """Draw the final token from the first of `rest` (unless it is None), pi and p that has mass."""
        if not p.valid or not (p.p > 0).any():
            return self.emit(p.fallback, math.nan, INVALID_ROW)
        if pi.greedy and rest is None:
            return self.emit(pi.fallback, p.log(pi.fallback))
        status = 0
        for w in map(positive, [pi.p, p.p] if rest is None else [rest, pi.p, p.p]):
            if self.chance.has_mass(w):
                break
            status = EMPTY_RESIDUAL
        x = self.chance.draw(w)
        return self.emit(x, p.log(x), status)

    def emit(self, token, logprob, status=0):
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.status |= status
        return self


def descend(request, chance, rule, tests_of):
    """Walk down from the root. rule(step, p, tests) -> (accepted child or None, weights of the final draw or None)."""
    step = Step(request, chance)
    while True:
        p = request.target(step.node)
        tests = tests_of(step.node, len(step.tokens))
        pi, child, rest = p, None, None
        if p.valid or p.gathered:
            pi = step.pi(step.node, p, [c for c, _ in tests if step.is_inside(c)])
        if pi.greedy:  # the only possible token is accepted if it was drafted
            child = next((c for c, _ in tests if step.token(c) == pi.fallback), None)
        elif tests and (p.valid or p.gathered):
            child, rest = rule(step, pi, step.inside(tests))
        if child is None:
            return step.end(p, rest, pi)
        step.take(child, p)

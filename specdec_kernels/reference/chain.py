# SPDX-License-Identifier: Apache-2.0
"""One request of verify_chain: its rows, its rule, and its output."""

import math

import numpy as np

from .law import Q_MAX, Law, positive
from .rules import LAWS, Pair
from .status import EMPTY_RESIDUAL, INVALID_BONUS, INVALID_DRAFT, INVALID_ROW


class Chain:
    """A request's drafts and rows, and the tokens it has emitted.

    drafts: the ids of the drafts before the first id outside both vocabularies, which ends them.
    target(i), draft(i): return the Law of row i as it is sampled from. For one-hot drafts, `draft` is None or returns
    None.
    target1(i), draft1(i): return the Law of the same row at T = 1 without filters. All Laws are padded to one width, at
    least the vocabulary.
    end_row: whether the draft has a row after its last draft too.
    bonus: the token to emit if all drafts are accepted; None: it is drawn.
    noise(i, i): returns (seed, position) of a race on row i.
    """

    def __init__(
        self, drafts, target, draft, target1, draft1, vocab, rule, alpha, chance, bonus=None, end_row=False, noise=None
    ):
        self.drafts, self.p, self.draft, self.target1, self.draft1 = drafts, target, draft, target1, draft1
        self.vocab, self.noise = vocab, noise or (lambda row, after: None)
        self.rule, self.alpha, self.chance, self.bonus, self.end_row = rule, alpha, chance, bonus, end_row
        self.tokens, self.logprobs, self.status = [], [], 0

    def readable(self, p, d):
        """Return whether p has a probability of d; if not, the drafts end there."""
        return not math.isnan(p.p[d]) and (p.valid or p.gathered)

    def pair(self, i, d, p):
        q = self.drawn_from(i)
        if q is None:
            q = Law(np.eye(1, len(p.p), d)[0], True, False, d)
            return Pair(p, q, lambda: (self.target1(i), q), self.vocab)
        return Pair(p, q, lambda: (self.target1(i), self.draft1(i)), self.vocab)

    def drawn_from(self, i):
        """Return the Law of the draft's row at position i; None for a one-hot draft."""
        return None if self.draft is None else self.draft(i)

    def flag(self, pair, d):
        """Set status bits if d cannot have been drawn from q."""
        if pair.draft.missing:
            self.status |= INVALID_DRAFT
        elif not (pair.draft.valid or pair.draft.gathered):
            self.status |= INVALID_ROW | INVALID_DRAFT
        elif not 0 < pair.q[d] <= Q_MAX:
            self.status |= INVALID_DRAFT

    def take(self, d, p):
        self.emit(d, p.log(d))

    def end(self):
        """Emit the last token after all drafts were accepted.

        It is the caller's bonus token, or a draw: from pi if the draft has a row for this position too, else from p.
        """
        i = len(self.tokens)
        if self.bonus is not None:
            self.status |= 0 if 0 <= self.bonus < self.vocab else INVALID_BONUS
            return self.emit(max(self.bonus, 0), math.nan)
        p, pair = self.p(i), self.pair_after(i)
        if pair is not None:
            mix = self.chance.mix(pair, self.rule, self.alpha)
            if not mix.defers:
                return self.draw(p, (mix.law(pair),))
        return self.draw(p)

    def pair_after(self, i):
        """Return the Pair of rows after the last draft; None if there is none, or if it is not needed."""
        asks = self.bonus is None and self.end_row and self.rule in LAWS and self.rule != "exact"
        if not asks or not self.p(i).valid or self.drawn_from(i) is None:
            return None
        pair = self.pair(i, -1, self.p(i))
        if not (pair.draft.valid or pair.draft.gathered):
            self.status |= INVALID_DRAFT if pair.draft.missing else INVALID_ROW
        return pair

    def draw(self, p, choices=()):
        """Draw the final token from the first of `choices` that has mass, else from p."""
        if not p.valid or not (p.p > 0).any():  # p may be all 0 if the stats are those of another row
            self.status |= INVALID_ROW
            return self.emit(p.fallback, math.nan)
        if p.greedy and not choices:
            return self.emit(p.fallback, 0.0)
        for w in (*choices, positive(p.p)):
            if self.chance.has_mass(w):
                break
            self.status |= EMPTY_RESIDUAL
        x = self.chance.draw(w)
        return self.emit(x, p.log(x))

    def emit(self, token, logprob):
        self.tokens.append(token)
        self.logprobs.append(logprob)
        return self

# SPDX-License-Identifier: Apache-2.0
"""Wrong rules of engines and papers, as docs/wrong_rules.md describes them.

A rule makes every random choice by draw(weights), which returns an id. The same function is a sampler if draw is
random, and gives the exact distribution if all choices are enumerated.
"""

import random
from collections import defaultdict

import numpy as np
import torch

from specdec_kernels.reference.chance import outcomes


def law_of(rule):
    """Return {tokens: probability} of what rule(draw) emits."""
    law = defaultdict(float)
    for tokens, probability in outcomes(lambda chance: rule(chance.draw)):
        law[tuple(tokens)] += probability
    return dict(law)


def drawn(rule, seeds):
    """Return what rule(draw) emits for each seed."""
    choices = random.Random(int(seeds[0])).choices
    return [rule(lambda w: choices(range(len(w)), w)[0]) for _ in seeds]


def coin(draw, x):
    """Return True with probability min(1, x)."""
    return draw([min(x, 1.0), max(1.0 - x, 0.0)]) == 0


def rest(p, q):
    return np.maximum(p - q, 0.0)


def verified(draw, p, q, d):
    """Test one draft by the right rule; return the draft, or a draw from the residual."""
    return d if coin(draw, p[d] / q[d]) else draw(rest(p, q))


# ---- one token: a rule is (draw, p [V], q [V]) -> token --------------------------------------------------------------


def drawn_again(draw, p, q):
    d = draw(q)
    return d if coin(draw, p[d]) else draw(p)


def siblings_against_one_p(draw, p, q):
    for d in draw(q), draw(q):
        if coin(draw, p[d] / q[d]):
            return d
    return draw(rest(p, q))


TRIED, RECORDED = 34, 32  # the siblings are the ids 0 .. 33


def siblings_not_recorded(draw, p, q):
    d = draw(p)  # the same as one uniform that is compared with the sums of p over the siblings
    return d if d < TRIED else draw(np.where(np.arange(len(p)) < RECORDED, 0.0, p))


def siblings_not_recorded_total_of_the_tests(draw, p, q):
    """Take 1 minus the sum over all siblings as the residual's total, so that the search ends before the last ids."""
    d = draw(p)
    cdf = np.where(np.arange(len(p)) < RECORDED, 0.0, p).cumsum()
    return d if d < TRIED else draw(np.diff(np.minimum(cdf, p[TRIED:].sum()), prepend=0.0))


def zero_accepted(draw, p, q, bits=24):
    """Accept sibling 0 if u <= p(0), where u is a multiple of 2^-bits."""
    return 0 if coin(draw, p[0] + 2.0**-bits) else draw(rest(p, q))


def drawn_at_half_temperature(draw, p, q):
    return verified(draw, p, q, draw(q**2))


def drawn_as_argmax(draw, p, q):
    return verified(draw, p, q, int(q.argmax()))


def drawn_in_bfloat16(draw, p, q):
    edges = torch.from_numpy(q).cumsum(0).bfloat16().double().numpy()
    return verified(draw, p, q, draw(np.diff(edges, prepend=0.0)))


def rounded_rest(dtype):
    """Return a rule whose residual is p (1 - q / p), with q / p and the difference rounded to `dtype`."""

    def rule(draw, p, q):
        d, ratio = draw(q), torch.from_numpy(q / p).clamp(max=1).to(dtype)
        return d if coin(draw, p[d] / q[d]) else draw(p * (1 - ratio).double().numpy())

    return rule


def dropped_if_unlikely(draw, p, q):
    d = draw(q)
    return verified(draw, p, q, d) if q[d] >= 0.25 else draw(p)


def dropped_if_forbidden(draw, p, q):
    d = draw(q)
    return verified(draw, p, q, d) if p[d] > 0 else draw(p)


ROWS = np.array([[0.45, 0.3, 0.15, 0.1], [0.0, 0.0, 0.6, 0.4]])  # without and with a filter that is on half of the time


def coin_tossed_again(draw, p, q):
    d, tested, left = draw(q), ROWS[draw([0.5, 0.5])], ROWS[draw([0.5, 0.5])]
    return d if coin(draw, tested[d] / q[d]) else draw(rest(left, q))


TIED = np.array([2.0, 1.7, 1.0])  # logits


def near_ties_accepted(shift):
    """Return a rule that accepts the two largest logits if the second is more than .9 times the first."""

    def rule(draw, p, q):
        d, z = draw(q), TIED + shift
        second, first = np.sort(z)[-2:]
        return d if second / first > 0.9 and z[d] >= second else verified(draw, p, q, d)

    return rule


# ---- two drafts: a rule is (draw, p, q) -> tokens; p and q are functions of a prefix ---------------------------------


def token_by_token(draw, p, q):
    """Verify two drafts by the right rule."""
    tokens = ()
    for _ in range(2):
        d = draw(q(tokens))
        tokens += (verified(draw, p(tokens), q(tokens), d),)
        if tokens[-1] != d:
            return tokens
    return (*tokens, draw(p(tokens)))


def presence(row, tokens):
    return row - 1.5 * np.bincount(tokens, minlength=len(row)).clip(max=1)


def committed_counts(draw, p, q):
    """Verify with the penalties of the first row on every row."""
    return token_by_token(draw, lambda prefix: p(()), q)


def joint(p, tokens):
    return np.prod([p(tokens[:i])[t] for i, t in enumerate(tokens)])


def block(draw, p, q, capped):
    """Test both drafts, then the first alone, by the ratio of joint probabilities.

    Block verification caps the ratio at 1 after each draft.
    """
    d = ()
    for _ in range(2):
        d += (draw(q(d)),)
    first, both = (joint(p, d[:i]) / joint(q, d[:i]) for i in (1, 2))
    if capped:
        first = min(1.0, first)
    if coin(draw, both):
        return (*d, draw(p(d)))
    left, lacking = rest(first * p(d[:1]), q(d[:1])), rest(q(d[:1]), first * p(d[:1])).sum()
    if coin(draw, left.sum() / lacking if lacking > 0 else 1.0):
        return (d[0], draw(left))
    return (draw(rest(p(()), q(()))),)


def greedy_block(draw, p, q):
    """Verify without a cap, and without changing the next step's target."""
    return block(draw, p, q, capped=False)


def uncapped_last_test(draw, p, q):
    return block(draw, p, q, capped=True)

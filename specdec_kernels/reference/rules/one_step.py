# SPDX-License-Identifier: Apache-2.0
"""Acceptance and output distribution of a rule for one draft and one pair of rows, without a walk.

Rules that define a distribution are evaluated in closed form. For the others, all decisions of their test are
enumerated.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from ..chain import Chain
from ..chance import outcomes
from ..law import Law
from . import verify_draft
from .laws import LAWS, mix_of
from .pair import Pair


class OneStep(NamedTuple):
    accept: np.ndarray  # [V]: probability that draft d is accepted
    final: np.ndarray  # [V, V]: distribution of the token that replaces a rejected d
    emitted: np.ndarray  # [V]: distribution of the emitted token if d ~ q
    pi: np.ndarray | None  # [V]: the distribution used instead of p; None if the rule defines none


def law_of_row(row):
    return Law(row, True, False, int(np.argmax(row)))


def pair_of(p, q, p1=None, q1=None):
    """Return two rows of any width as a Pair. p1, q1: the unscaled rows, by default the same."""
    vocab, wide = len(p), max(len(p), len(q))
    p, q, p1, q1 = (
        np.pad(np.asarray(x, dtype=np.float64), (0, wide - len(x)))
        for x in (p, q, p if p1 is None else p1, q if q1 is None else q1)
    )
    return Pair(law_of_row(p), law_of_row(q), lambda: (law_of_row(p1), law_of_row(q1)), vocab)


def pi_of(p, q, rule="exact", alpha=(), p1=None, q1=None):
    """Return the distribution that the rule uses instead of p [V], given q [Vq], as wide as the wider row.

    alpha: as `resolved` returns it.
    """
    pair = pair_of(p, q, p1, q1)
    return mix_of(pair, rule, alpha).law(pair)


def one_step(p, q, rule="exact", alpha=(), p1=None, q1=None):
    """Return the OneStep of p [V] and q [Vq]. p must not be greedy: lenience has another test for greedy targets."""
    pair = pair_of(p, q, p1, q1)
    p, q, pi = pair.p, pair.q, None
    with np.errstate(divide="ignore", invalid="ignore"):
        if rule in LAWS:
            mix = mix_of(pair, rule, alpha)
            pi = mix.law(pair)
            accept, rest, otherwise = pi / q, mix.leftover(pair), pi
        else:
            accept, rest = by_test(pair, rule, alpha)
            otherwise = p
    accept = np.where(q > 0, np.clip(np.nan_to_num(accept), 0.0, 1.0), 0.0)
    total = np.sum(rest, axis=-1, keepdims=True)
    final = np.broadcast_to(
        np.where(total > 0, rest / np.where(total > 0, total, 1.0), otherwise / otherwise.sum()), (len(p), len(p))
    )
    return OneStep(accept, final, q * accept + (q * (1 - accept)) @ final, pi)


def by_test(pair, rule, alpha):
    """Return the probability that each d is accepted, and the weights of the token that replaces it."""
    accept, rest = np.zeros(len(pair.p)), np.zeros((len(pair.p), len(pair.p)))
    p1, q1 = pair.unscaled
    rows = [lambda i, law=law: law for law in (pair.target, pair.draft, p1, q1)]
    for d in np.flatnonzero(pair.q):
        chain = partial(Chain, [d], *rows, pair.inside.sum(), rule, alpha)
        for (accepted, choices), chance in outcomes(lambda branch: verify_draft(chain(branch), 0, d, pair.target)):
            if accepted:
                accept[d] += chance
            else:
                rest[d] = choices[0] if choices else pair.p
    return accept, rest

# SPDX-License-Identifier: Apache-2.0
"""What a rule makes of one draft from one pair of rows, without a walk: a law in closed form, a test by every
decision it can come to."""

from functools import partial
from typing import NamedTuple

import numpy as np

from ..chain import Chain
from ..chance import outcomes
from ..law import Law
from . import judge
from .laws import LAWS, mix_of
from .pair import Pair


class OneStep(NamedTuple):
    accept: np.ndarray  # [V]: the chance that draft d is accepted
    final: np.ndarray  # [V, V]: the law of the token that replaces a rejected d
    emitted: np.ndarray  # [V]: the law of the emitted token where d ~ q
    pi: np.ndarray | None  # [V]: the law put in place of p; None where the rule is none


def law_of_row(row):
    return Law(row, True, False, int(np.argmax(row)))


def pair_of(p, q, p1=None, q1=None):
    """Two rows of any width as a Pair; p1, q1: the unscaled rows, by default the same."""
    vocab, wide = len(p), max(len(p), len(q))
    p, q, p1, q1 = (
        np.pad(np.asarray(x, dtype=np.float64), (0, wide - len(x)))
        for x in (p, q, p if p1 is None else p1, q if q1 is None else q1)
    )
    return Pair(law_of_row(p), law_of_row(q), lambda: (law_of_row(p1), law_of_row(q1)), vocab)


def pi_of(p, q, rule="exact", alpha=(), p1=None, q1=None):
    """[V], [Vq] -> the law that the rule puts in place of p, as wide as the wider row. alpha: as `resolved` returns
    it."""
    pair = pair_of(p, q, p1, q1)
    return mix_of(pair, rule, alpha).law(pair)


def one_step(p, q, rule="exact", alpha=(), p1=None, q1=None):
    """[V], [Vq] probabilities -> OneStep (greedy targets, where lenience is another rule, excepted)."""
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
    """The chance that each d is accepted, and the weights of what replaces it."""
    accept, rest = np.zeros(len(pair.p)), np.zeros((len(pair.p), len(pair.p)))
    p1, q1 = pair.unscaled
    rows = [lambda i, law=law: law for law in (pair.target, pair.draft, p1, q1)]
    for d in np.flatnonzero(pair.q):
        chain = partial(Chain, [d], *rows, pair.inside.sum(), rule, alpha)
        for (accepted, choices), chance in outcomes(lambda coins: judge(chain(coins), 0, d, pair.target)):
            if accepted:
                accept[d] += chance
            else:
                rest[d] = choices[0] if choices else pair.p
    return accept, rest

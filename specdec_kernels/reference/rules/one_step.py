# SPDX-License-Identifier: Apache-2.0
"""What a rule makes of one draft from one pair of rows, in closed form: no walk, no uniforms."""

from typing import NamedTuple

import numpy as np

from ...registry import RULES
from ..law import Law
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
            accept, rest = OTHERS[rule](pair, *alpha)
            otherwise = p
    accept = np.where(q > 0, np.clip(np.nan_to_num(accept), 0.0, 1.0), 0.0)
    total = np.sum(rest, axis=-1, keepdims=True)
    final = np.broadcast_to(
        np.where(total > 0, rest / np.where(total > 0, total, 1.0), otherwise / otherwise.sum()), (len(p), len(p))
    )
    return OneStep(accept, final, q * accept + (q * (1 - accept)) @ final, pi)


def lenience(pair, l):
    return pair.p / (l * pair.q), np.maximum(pair.p - pair.q, 0.0)


def typical(pair, eps, delta):
    some = pair.p[pair.p > 0]
    return pair.p > min(eps, delta * np.exp((some * np.log(some)).sum())), pair.p


def relaxed(pair, n, delta):
    p1 = pair.p1.p
    rank = (p1[None, :] > p1[:, None]).sum(-1)
    return (rank < n) & (p1 > 0) & (p1 >= p1.max() - delta), pair.p


def synthetic(pair, rate):
    return rate * pair.inside, pair.p


def thresholds(pair, single, acc):
    return np.where(pair.p >= single, 1.0, pair.p / acc), pair.p * (1 - np.eye(len(pair.p)))


OTHERS = {
    "lenience": lenience,
    "typical": typical,
    "relaxed": relaxed,
    "synthetic": synthetic,
    "thresholds": thresholds,
}
assert {*LAWS, *OTHERS} == set(RULES)

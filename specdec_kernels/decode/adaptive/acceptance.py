# SPDX-License-Identifier: Apache-2.0
"""Estimates of the probability that a draft token is accepted, learnt from earlier drafts."""

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch

import specdec_kernels as sk

from ..transfers import is_free

__all__ = ["Acceptance", "Kind", "row_kinds", "terms"]

_PRIOR = 4.0  # a first guess weighs as much as this many tested drafts
_MEMORY = 256.0  # once a kind has this many tests, its counts are halved


class Kind(NamedTuple):
    """Facts about a draft token that are known before it is drawn, and a first estimate of its acceptance.

    Examples: the confidence of the row that it is drawn from, the length of a match in the text, its index among its
    siblings, the tokens before it. Choosing drafts by these leaves the output distribution unchanged. The drawn token
    itself must never be part of a kind: dropping a draft because of its value biases the output.
    """

    known: Hashable
    guess: float  # first estimate of the acceptance probability


class Acceptance:
    """Acceptance probability by kind: a running mean that starts at the kind's guess."""

    def __init__(self):
        self.counts: dict[Hashable, tuple[float, float]] = {}  # accepted, tested

    def chance(self, kind: Kind) -> float:
        known, guess = kind
        accepted, tested = self.counts.get(known, (0.0, 0.0))
        return (accepted + _PRIOR * guess) / (tested + _PRIOR)

    def mean(self, guess: float) -> float:
        """Return the acceptance rate over all tests of all kinds, with `guess` as the prior."""
        accepted, tested = (sum(counts) for counts in zip((_PRIOR * guess, _PRIOR), *self.counts.values()))
        return accepted / tested

    def promise(self, price: float, guess: float) -> float:
        """Return the expected gain from a request's next draft token, less its price, in tokens.

        price: the cost of scoring a draft token (goodput.py). Drafts with a lower acceptance probability count as 0,
        since they are not made.
        """
        kinds = [(_PRIOR, guess), *((tested, self.chance(Kind(k, guess))) for k, (_, tested) in self.counts.items())]
        return sum(n * max(0.0, chance - price) for n, chance in kinds) / sum(n for n, _ in kinds)

    def observe(self, kind: Kind, accepted: bool) -> None:
        known, _ = kind
        yes, tested = self.counts.get(known, (0.0, 0.0))
        forget = 0.5 if tested >= _MEMORY else 1.0
        self.counts[known] = forget * yes + accepted, forget * tested + 1


def terms(request) -> tuple[float, str]:
    """Return the request's temperature (to one decimal) and rule, which are part of a draft's kind."""
    return round(request.temperature, 1), request.rule


def row_kinds(batch, rows: sk.Rows, place: int) -> list[Kind]:
    """Return the kind of each request's next draft token, which will be drawn from its row of rows [n, V].

    The kind is the log-odds of the row's largest probability at temperature 1, rounded to an integer from -4 to 4, with
    the request's terms. Where reading rows would wait for a device it is `place` alone, the token's index in its draft.
    """
    if not is_free(rows.logits):
        return [Kind(place, 0.7)] * len(batch)
    surest = torch.exp(-sk.row_stats(rows)[:, 2]).clamp(1e-9, 1 - 1e-9)
    steps = torch.logit(surest.double()).clamp(-4, 4).round().nan_to_num(-4).int().tolist()
    return [Kind((*terms(s.request), step), 1 / (1 + math.exp(0.2 - 0.5 * step))) for s, step in zip(batch, steps)]

# SPDX-License-Identifier: Apache-2.0
"""How likely a draft is to be accepted, learnt from what became of the drafts before it."""

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch

import specdec_kernels as sk

from ..transfers import is_free

__all__ = ["Acceptance", "Kind", "row_kinds", "terms"]

_PRIOR = 4.0  # tests that a guess is worth
_MEMORY = 256.0  # tests of a kind that count


class Kind(NamedTuple):
    """What is known of a draft before it is drawn.

    How sure the row is that it is drawn from, the length of a match in the text, its number among its siblings, the
    tokens before it: drafts that are chosen by their chances then leave the law as it is. Never the drawn token: a
    draft that is dropped because of what it turned out to be leaves a biased law.
    """

    known: Hashable
    guess: float  # of its chance


class Acceptance:
    """Chances by kind: a running mean of what was accepted, from the first guess on."""

    def __init__(self):
        self.counts: dict[Hashable, tuple[float, float]] = {}  # accepted, tested

    def chance(self, kind: Kind) -> float:
        known, guess = kind
        accepted, tested = self.counts.get(known, (0.0, 0.0))
        return (accepted + _PRIOR * guess) / (tested + _PRIOR)

    def mean(self, guess: float) -> float:
        """Of all that was tested."""
        accepted, tested = (sum(counts) for counts in zip((_PRIOR * guess, _PRIOR), *self.counts.values()))
        return accepted / tested

    def promise(self, price: float, guess: float) -> float:
        """What the next draft of a row brings on average, in tokens, if it is made where its chance exceeds the
        price."""
        kinds = [(_PRIOR, guess), *((tested, self.chance(Kind(k, guess))) for k, (_, tested) in self.counts.items())]
        return sum(n * max(0.0, chance - price) for n, chance in kinds) / sum(n for n, _ in kinds)

    def observe(self, kind: Kind, accepted: bool) -> None:
        known, _ = kind
        yes, tested = self.counts.get(known, (0.0, 0.0))
        forget = 0.5 if tested >= _MEMORY else 1.0
        self.counts[known] = forget * yes + accepted, forget * tested + 1


def terms(request) -> tuple[float, str]:
    """How it samples and accepts."""
    return round(request.temperature, 1), request.rule


def row_kinds(batch, logits: torch.Tensor, place: int) -> list[Kind]:
    """Of drafts that rows [n, V] are about to give, the place-th of their requests: by the log-odds of a row's largest
    probability at temperature 1, in whole steps from -4 to 4, and by how its request samples and accepts. Where reading
    rows is not free: by their place alone."""
    if not is_free(logits):
        return [Kind(place, 0.7)] * len(batch)
    surest = torch.exp(-sk.row_stats(logits)[:, 2]).clamp(1e-9, 1 - 1e-9)
    steps = torch.logit(surest.double()).clamp(-4, 4).round().nan_to_num(-4).int().tolist()
    return [Kind((*terms(s.request), step), 1 / (1 + math.exp(0.2 - 0.5 * step))) for s, step in zip(batch, steps)]

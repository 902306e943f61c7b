# SPDX-License-Identifier: Apache-2.0
"""What a drafter hands to the loop, and what the loop asks of a drafter."""

from typing import NamedTuple, Protocol

import torch

from .sequence import Batch, Sequence

__all__ = ["Draft", "Drafter", "tested_drafts"]


class Draft(NamedTuple):
    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's draft
    logits: torch.Tensor | None = None  # [n, G, Vq], None: every draft is one-hot
    stats: torch.Tensor | None = None  # [n, G, 4] of the rows of logits; a greedy row (scale +inf) is one-hot and its logits go unread


class Drafter(Protocol):
    """What the loop asks of a drafter. Slots are numbered as in the target's cache."""

    margin: int  # how many positions past the end of a sequence a step may write

    def begin(self, slots: int, capacity: int) -> None:
        """A new run of the loop."""

    def admit(self, slot: int, sequence: Sequence) -> None:
        """A request takes a slot."""

    def move(self, source: int, target: int) -> None:
        """The request in slot `source` goes on in slot `target`."""

    def propose(self, batch: Batch) -> Draft | None:
        """Draft for every sequence; None if there is nothing for any of them."""

    def observe(self, drafted: list[int], accepted: list[int], draft_seconds: float, target_seconds: float) -> None:
        """What became of the last proposal, row by row, and the seconds the step's two halves took."""


def tested_drafts(drafted: list[int], accepted: list[int]) -> int:
    """How many drafts the acceptance test looked at: the accepted ones and the first rejected one of each row."""
    return sum(min(a + 1, g) for g, a in zip(drafted, accepted))

# SPDX-License-Identifier: Apache-2.0
"""Drafts from the request's own text."""

import torch

from ...registry import ONE_HOT_RULES
from ..proposal import Draft, Drafter
from .draft_length import make_gamma

__all__ = ["PromptLookupDrafter"]


class PromptLookupDrafter(Drafter):
    """Drafts what followed the last n tokens where they last occurred in the request's own text: no model, one-hot
    drafts.

    The longest n of max_ngram..min_ngram that occurred before wins. An index of each sequence's n-grams grows with it,
    so a proposal costs microseconds at any length.

    Args:
        gamma, max_gamma: as in ModelDrafter.
        max_ngram, min_ngram: how many tokens must have occurred before.

    Raises:
        ValueError: a gamma below 1, or n-grams that are not 1 <= min_ngram <= max_ngram.

    Source:
        Saxena 2023 (prompt lookup decoding).
    """

    rules, verifies = ONE_HOT_RULES, ("token", "block")

    def __init__(self, gamma: int | str = 6, max_ngram: int = 4, min_ngram: int = 2, max_gamma: int = 10):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"PromptLookupDrafter: wanted 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}"
            )
        self.gamma, self.sizes = make_gamma(gamma, max_gamma), range(max_ngram, min_ngram - 1, -1)
        self.num_lookahead = self.gamma.max + 1

    def begin(self, slots, capacity):
        self.index: list[tuple[dict, int]] = [({}, 0)] * slots

    def admit(self, slot, sequence):
        self.index[slot] = ({}, 0)

    def move(self, source, target):
        self.index[target] = self.index[source]

    def propose(self, batch):
        found = self.find(batch)
        width = max(map(len, found))
        if width == 0:
            return None
        return Draft(torch.tensor([f + [-1] * (width - len(f)) for f in found]))

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        self.gamma.observe(drafted, accepted, draft_seconds, target_seconds)

    def find(self, batch) -> list[list[int]]:
        """A draft for each sequence, [] where its last tokens have not occurred before."""
        return [self._find(slot, s, min(self.gamma.value, s.remaining - 1)) for slot, s in enumerate(batch)]

    def _find(self, slot, sequence, limit):
        (table, done), tokens = self.index[slot], sequence.tokens
        # table[n-gram] = the position after its latest occurrence that has a successor
        for end in range(max(done, 1), sequence.settled):
            for n in self.sizes:
                if n <= end:
                    table[tuple(tokens[end - n : end])] = end
        self.index[slot] = (table, sequence.settled)
        for n in self.sizes:
            after = table.get(tuple(tokens[-n:])) if n < len(tokens) else None
            if after is not None:
                period = len(tokens) - after  # a match that runs into the end goes on as it began
                return [tokens[after + i % period] for i in range(limit)]
        return []

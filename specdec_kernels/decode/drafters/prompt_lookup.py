# SPDX-License-Identifier: Apache-2.0
"""Drafts from the request's own text."""

from ...registry import ONE_HOT_RULES
from ..adaptive.acceptance import Kind, terms
from ..adaptive.draft_length import make_gamma
from ..proposal import Draft, Drafter
from ..transfers import upload_rows

__all__ = ["PromptLookupDrafter"]

_GUESS, _FAR = 0.6, 3  # acceptance before any measurement; positions from _FAR on count as one kind


class PromptLookupDrafter(Drafter):
    """Drafter by prompt lookup: drafts the tokens that followed the latest earlier occurrence of the last n tokens.

    It needs no model, and its drafts are one-hot. The longest n from max_ngram down to min_ngram with a match is used.
    An index of each sequence's n-grams grows with it, so a proposal costs microseconds at any length.

    Args:
        gamma, max_gamma: as in ModelDrafter.
        max_ngram, min_ngram: the most and the fewest tokens to match.

    Raises:
        ValueError: a gamma below 1, or n-grams that are not 1 <= min_ngram <= max_ngram.

    Source:
        Saxena 2023 (prompt lookup decoding).
    """

    rules, verifies = ONE_HOT_RULES, ("token", "block", "race")

    def __init__(self, gamma: int | str = 6, max_ngram: int = 4, min_ngram: int = 2, max_gamma: int = 10):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"PromptLookupDrafter: wanted 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}"
            )
        self.gamma = make_gamma("PromptLookupDrafter", gamma, max_gamma)
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.num_lookahead = self.gamma.max + 1

    def begin(self, slots, capacity):
        self.texts = [_Text() for _ in range(slots)]

    def admit(self, slot, sequence):
        self.texts[slot] = _Text()

    def move(self, source, target):
        self.texts[target] = self.texts[source]

    def release(self, slot):
        self.texts[slot] = _Text()

    def forget(self):
        for text in self.texts:
            text.found = 0, [], []

    def propose(self, batch):
        found = self.find(batch)
        return Draft(upload_rows(found, batch.device)) if any(found) else None

    def observe(self, outcome):
        if self.gamma.adaptive:
            self.gamma.goodput.observe(outcome)  # acceptance itself is learnt from the text, in _learn

    def find(self, batch, columns: int = 0) -> list[list[int]]:
        """Return a draft for each sequence, [] where its last tokens have no match, or where drafting does not pay.

        columns: as in AdaptiveGamma.begin.
        """
        found, texts = [], self.texts[batch.slots]
        for text, s in zip(texts, batch):
            if self.gamma.adaptive:
                self._learn(text, s.tokens)
            matched, tokens = text.find(s, self.sizes, min(self.gamma.max, s.remaining - 1))
            known = (*terms(s.request), matched)
            text.found = len(s.tokens), [Kind((*known, min(i, _FAR)), _GUESS) for i in range(len(tokens))], tokens
            found.append(tokens)
        going = [row for row, tokens in enumerate(found) if tokens]
        more, lengths = self.gamma.begin(len(batch), len(going), columns), [0] * len(batch)
        while more and going:
            going = [row for row in going if self.gamma.keep(row, texts[row].found[1][lengths[row]])]
            for row in going:
                lengths[row] += 1
            going = [row for row in going if lengths[row] < len(found[row])]
            more = going and self.gamma.pays()
        return [tokens[:length] for tokens, length in zip(found, lengths)]

    def _learn(self, text, tokens):
        """Learn acceptance from the text since the last match, drafted or not.

        A one-hot draft is accepted as often as the text continues with it, so every match counts.
        """
        for at, (kind, token) in enumerate(zip(*text.found[1:]), text.found[0]):
            if at >= len(tokens):
                break
            self.gamma.acceptance.observe(kind, tokens[at] == token)
            if tokens[at] != token:
                break


class _Text:
    """The n-grams of one request's text, and the last match: (text length at that time, kinds, tokens)."""

    def __init__(self):
        self.after: dict[tuple, int] = {}  # n-gram -> the position after its latest occurrence that has a successor
        self.read = 0  # the tokens before this position are indexed
        self.found: tuple[int, list[Kind], list[int]] = 0, [], []

    def find(self, sequence, sizes, limit) -> tuple[int, list[int]]:
        """Return the length of the longest match (0 for none), and up to `limit` tokens that followed it."""
        tokens = sequence.tokens
        for end in range(max(self.read, 1), sequence.num_final):
            self.after |= {tuple(tokens[end - n : end]): end for n in sizes if n <= end}
        self.read = sequence.num_final
        for n in sizes:
            after = self.after.get(tuple(tokens[-n:])) if n < len(tokens) else None
            if after is not None:
                period = len(tokens) - after  # a match that reaches the end of the text repeats
                return n, [tokens[after + i % period] for i in range(limit)]
        return 0, []

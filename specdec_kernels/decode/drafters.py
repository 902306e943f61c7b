# SPDX-License-Identifier: Apache-2.0
"""Where drafts come from: a model, the request's own text, or the one where the other finds nothing."""

from typing import NamedTuple, Protocol

import torch

import specdec_kernels as sk

from .gamma import make_gamma
from .sequence import Batch, Sequence

__all__ = ["Draft", "Drafter", "LookupThenModel", "ModelDrafter", "PromptLookupDrafter"]


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


def _tested(drafted, accepted):
    return sum(min(a + 1, g) for g, a in zip(drafted, accepted))


class ModelDrafter:
    """Drafts with a model that has a cache of its own, by each request's own sampling parameters."""

    def __init__(self, model, gamma: int | str = 4, max_gamma: int = 8):
        self.model, self.gamma = model, make_gamma(gamma, max_gamma)
        self.catch_up = self.gamma.max + 1  # tokens a row may be behind in a joint pass
        self.margin = self.gamma.max + self.catch_up

    def begin(self, slots, capacity):
        self.cache = self.model.new_cache(slots, capacity)
        self.held: list[list[int]] = [[] for _ in range(slots)]  # the tokens whose keys each slot's cache holds

    def admit(self, slot, sequence):
        self.held[slot] = []
        self._feed(slot, sequence.tokens[:-1])

    def move(self, source, target):
        self.cache.move(source, target)
        self.held[target] = self.held[source]

    def propose(self, batch):
        limits = [min(self.gamma.value, s.remaining - 1) for s in batch]
        width = max(limits)
        if width < 1:
            return None
        logits = self._behind(batch)
        randomness, length = batch.randomness, [len(s.tokens) for s in batch]
        drawn, rows, stats = [], [], []
        for i in range(width):
            out = sk.sample(logits, slot=i, **randomness)
            drawn.append(out.tokens)
            rows.append(logits)
            stats.append(out.stats)
            if i + 1 < width:
                ids = out.tokens.clamp(max=self.model.vocab_size - 1)
                logits = self.model.forward(ids, [n + i for n in length], self.cache, keep=[0] * len(batch))
        tokens = torch.cat(drawn, 1)
        for slot, row in enumerate(tokens[:, : width - 1].tolist()):
            self.held[slot] += row
        if min(limits) < width:
            tokens = tokens.masked_fill(torch.arange(width) >= torch.tensor(limits)[:, None], -1)
        return Draft(tokens, torch.stack(rows, 1), torch.stack(stats, 1))

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        tested = _tested(drafted, accepted)
        self.gamma.observe(tested, sum(accepted), max(drafted), draft_seconds, target_seconds, len(drafted))

    def _behind(self, batch):
        """Feed what each cache lacks: the last token, and after a full acceptance the one before -> logits [n, Vq]."""
        start, missing = [], []
        for slot, sequence in enumerate(batch):
            tokens, held = sequence.tokens, self.held[slot]
            # Drafted tokens were held on trust; those the target did not emit are forgotten.
            keep = min(len(held), len(tokens) - 1)
            first = max(0, keep - self.margin)
            while first < keep and held[first] == tokens[first]:
                first += 1
            del held[first:]
            if len(tokens) - first > self.catch_up:
                self._feed(slot, tokens[first:-1])
                first = len(tokens) - 1
            start.append(first)
            missing.append(tokens[first:])
            held += missing[-1]
        width = max(map(len, missing))
        ids = torch.tensor([m + [0] * (width - len(m)) for m in missing]).clamp_(max=self.model.vocab_size - 1)
        return self.model.forward(ids, start, self.cache, keep=[len(m) - 1 for m in missing])

    def _feed(self, slot, tokens):
        if tokens:
            ids = torch.tensor([tokens]).clamp_(max=self.model.vocab_size - 1)
            self.model.forward(ids, [len(self.held[slot])], self.cache, slot, keep=None)
            self.held[slot] += tokens


class PromptLookupDrafter:
    """Drafts what followed the last n tokens where they last occurred in the request's own text: no model, one-hot drafts.

    The longest n of max_ngram..min_ngram that occurred before wins. An index of each sequence's n-grams grows with it,
    so a proposal costs microseconds at any length.
    """

    def __init__(self, gamma: int | str = 6, max_ngram: int = 4, min_ngram: int = 2, max_gamma: int = 10):
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"PromptLookupDrafter: wanted 1 <= min_ngram <= max_ngram, got {min_ngram} and {max_ngram}")
        self.gamma, self.sizes = make_gamma(gamma, max_gamma), range(max_ngram, min_ngram - 1, -1)
        self.margin = self.gamma.max + 1

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
        tested = _tested(drafted, accepted)
        self.gamma.observe(tested, sum(accepted), max(drafted), draft_seconds, target_seconds, len(drafted))

    def find(self, batch) -> list[list[int]]:
        """A draft for each sequence, [] where its last tokens have not occurred before."""
        return [self._find(slot, s.tokens, min(self.gamma.value, s.remaining - 1)) for slot, s in enumerate(batch)]

    def _find(self, slot, tokens, limit):
        table, done = self.index[slot]
        # table[n-gram] = the position after its latest occurrence that has a successor
        for end in range(max(done, 1), len(tokens)):
            for n in self.sizes:
                if n <= end:
                    table[tuple(tokens[end - n : end])] = end
        self.index[slot] = (table, len(tokens))
        for n in self.sizes:
            after = table.get(tuple(tokens[-n:])) if n < len(tokens) else None
            if after is not None:
                period = len(tokens) - after  # a match that runs into the end goes on as it began
                return [tokens[after + i % period] for i in range(limit)]
        return []


class LookupThenModel:
    """Prompt lookup where it finds something, the model for the other requests of the batch."""

    def __init__(self, lookup: PromptLookupDrafter, model: ModelDrafter):
        self.lookup, self.model = lookup, model
        self.margin = max(lookup.margin, model.margin)

    def begin(self, slots, capacity):
        self.lookup.begin(slots, capacity)
        self.model.begin(slots, capacity)

    def admit(self, slot, sequence):
        self.lookup.admit(slot, sequence)
        self.model.admit(slot, sequence)

    def move(self, source, target):
        self.lookup.move(source, target)
        self.model.move(source, target)

    def propose(self, batch):
        found = self.lookup.find(batch)
        self.looked_up = [bool(f) for f in found]
        draft = None if all(self.looked_up) else self.model.propose(batch)
        self.modelled = draft is not None
        width = max(max(map(len, found)), draft.tokens.shape[1] if self.modelled else 0)
        if width == 0:
            return None
        tokens = torch.tensor([f + [-1] * (width - len(f)) for f in found])
        if not self.modelled:
            return Draft(tokens)
        if not any(self.looked_up):
            return draft
        return self._merge(tokens, draft, width)

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        for drafter, mine in ((self.lookup, True), (self.model, False)):
            rows = [i for i, looked_up in enumerate(self.looked_up) if looked_up == mine and drafted[i] > 0]
            if rows:
                g, a = [drafted[i] for i in rows], [accepted[i] for i in rows]
                seconds = draft_seconds if drafter is self.model else 0.0
                drafter.gamma.observe(_tested(g, a), sum(a), max(drafted), seconds, target_seconds, len(drafted))

    def _merge(self, tokens, draft, width):
        """Looked-up rows beside model rows: a one-hot row is a greedy row of stats, whose logits are never read."""
        n, g, V = draft.logits.shape
        mine = torch.tensor(self.looked_up)[:, None]
        logits, stats = draft.logits, torch.zeros(n, width, 4)
        stats[:, :, 0] = torch.inf
        stats[:, :, 2] = tokens.clamp(min=0)
        stats[:, :g] = torch.where(mine[..., None], stats[:, :g], draft.stats)
        model_tokens = torch.full_like(tokens, -1)
        model_tokens[:, :g] = draft.tokens
        if g < width:
            logits = logits.new_empty(n, width, V)
            logits[:, :g] = draft.logits
        return Draft(torch.where(mine, tokens, model_tokens), logits, stats)

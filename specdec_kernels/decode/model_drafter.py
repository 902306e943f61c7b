# SPDX-License-Identifier: Apache-2.0
"""Drafts from a smaller model."""

import torch

import specdec_kernels as sk

from .draft import Draft, tested_drafts
from .gamma import make_gamma

__all__ = ["ModelDrafter"]

_CONFIDENCE = 0.4


def _probability(logits, tokens):
    """The draft's own probability of tokens [n, 1] at temperature 1 -> [n]."""
    stats = sk.row_stats(logits)
    return torch.exp(logits.gather(1, tokens)[:, 0].float() - stats[:, 3] - stats[:, 2])


class ModelDrafter:
    """Drafts with a model that has a cache of its own, by each request's own sampling parameters.

    confidence: a row's draft ends once the model's own probability of it, at temperature 1, has fallen below this. The
    token that made it fall stays in the draft, so whether it is drafted never depends on which one it is: exact.
    None: 0.4 with an adaptive gamma (measured to be best for SmolLM2 and its draft, by a little), else 0.
    """

    def __init__(self, model, gamma: int | str = 4, max_gamma: int = 8, confidence: float | None = None):
        self.model, self.gamma = model, make_gamma(gamma, max_gamma)
        self.confidence = (_CONFIDENCE if gamma == "auto" else 0.0) if confidence is None else confidence
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
        going, chance = torch.tensor(limits) > 0, torch.ones(len(batch))
        while going.any():
            i = len(drawn)
            out = sk.sample(logits, slot=i, **randomness)
            drawn.append(out.tokens.masked_fill(~going[:, None], -1))
            rows.append(logits)
            stats.append(out.stats)
            if self.confidence > 0:
                chance *= _probability(logits, out.tokens)
            going &= (torch.tensor(limits) > i + 1) & (chance >= self.confidence)
            if going.any():
                ids = out.tokens.clamp(max=self.model.vocab_size - 1)
                logits = self.model.forward(ids, [n + i for n in length], self.cache, keep=[0] * len(batch))
        tokens = torch.cat(drawn, 1)
        for slot, row in enumerate(tokens[:, :-1].tolist()):
            self.held[slot] += row
        return Draft(tokens, torch.stack(rows, 1), torch.stack(stats, 1))

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        tested = tested_drafts(drafted, accepted)
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

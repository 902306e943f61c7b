# SPDX-License-Identifier: Apache-2.0
"""Drafts from the text where it repeats itself, from a model where it does not, side by side in one batch."""

import torch

from ..proposal import ONE_HOT_RULES, Draft, tested_drafts
from .model_drafter import ModelDrafter
from .prompt_lookup import PromptLookupDrafter

__all__ = ["LookupThenModel"]


class LookupThenModel:
    """Prompt lookup where it finds something, the model for the other requests of the batch."""

    rules, verifies = ONE_HOT_RULES, ("token", "block")

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
                drafter.gamma.observe(tested_drafts(g, a), sum(a), max(drafted), seconds, target_seconds, len(drafted))

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

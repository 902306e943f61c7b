# SPDX-License-Identifier: Apache-2.0
"""Drafts from the text where it repeats itself, from a model where it does not, side by side in one batch."""

import torch

from ...registry import ONE_HOT_RULES
from ..proposal import Draft, Drafter, one_hot_stats
from .hierarchical_drafter import HierarchicalDrafter
from .model_drafter import ModelDrafter
from .prompt_lookup import PromptLookupDrafter

__all__ = ["LookupThenModel"]


class LookupThenModel(Drafter):
    """Prompt lookup where it finds something, the model for the other requests of the batch.

    Args:
        lookup, model: the two, each with a gamma of its own.
    """

    rules, verifies = ONE_HOT_RULES, ("token", "block")

    def __init__(self, lookup: PromptLookupDrafter, model: ModelDrafter | HierarchicalDrafter):
        self.lookup, self.model, self.parts = lookup, model, (lookup, model)
        self.num_lookahead = max(lookup.num_lookahead, model.num_lookahead)

    def propose(self, batch):
        found = self.lookup.find(batch)
        self.looked_up = [bool(f) for f in found]
        draft = None if all(self.looked_up) else self.model.propose(batch)
        width = max(max(map(len, found)), 0 if draft is None else draft.tokens.shape[1])
        if width == 0:
            return None
        tokens = torch.tensor([f + [-1] * (width - len(f)) for f in found])
        if draft is None:
            return Draft(tokens)
        if not any(self.looked_up):
            return draft
        return self._merge(tokens, draft, width)

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        for drafter, mine in ((self.lookup, True), (self.model, False)):
            rows = [i for i, looked_up in enumerate(self.looked_up) if looked_up == mine and drafted[i] > 0]
            if rows:
                seconds = 0.0 if mine else draft_seconds
                drafter.gamma.observe(drafted, accepted, seconds, target_seconds, rows)

    def _merge(self, tokens, draft, width):
        """Looked-up rows beside model rows."""
        n, g, V = draft.logits.shape
        mine = torch.tensor(self.looked_up)[:, None]
        logits, stats = draft.logits, one_hot_stats(tokens)
        stats[:, :g] = torch.where(mine[..., None], stats[:, :g], draft.stats)
        model_tokens = torch.full_like(tokens, -1)
        model_tokens[:, :g] = draft.tokens
        if g < width:
            logits = logits.new_empty(n, width, V)
            logits[:, :g] = draft.logits
        return Draft(torch.where(mine, tokens, model_tokens), logits, stats)

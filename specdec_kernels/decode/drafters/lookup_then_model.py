# SPDX-License-Identifier: Apache-2.0
"""Drafts from the request's text where it repeats itself and from a model elsewhere, mixed in one batch."""

from dataclasses import replace

import torch
from torch.nn.functional import pad

from ...registry import ONE_HOT_RULES
from ..interfaces import wrap
from ..proposal import Draft, Drafter
from ..transfers import upload
from .hierarchical_drafter import HierarchicalDrafter
from .model_drafter import ModelDrafter
from .prompt_lookup import PromptLookupDrafter

__all__ = ["LookupThenModel"]

_LOOKUPS, _MODELS = (PromptLookupDrafter,), (ModelDrafter, HierarchicalDrafter)


class LookupThenModel(Drafter):
    """Drafter by prompt lookup for the requests where it finds a match, and by the model for the others of the batch.

    If both gammas are "auto", a match is left to the model if the model's drafts usually gain more.

    Args:
        lookup, model: the two drafters, each with its own gamma.
    """

    rules = ONE_HOT_RULES

    def __init__(self, lookup: PromptLookupDrafter, model: ModelDrafter | HierarchicalDrafter):
        for name, value, kinds in (("lookup", lookup, _LOOKUPS), ("model", model, _MODELS)):
            if not isinstance(value, kinds):
                wanted = " or a ".join(kind.__name__ for kind in kinds)
                hint = wrap(value, "ModelDrafter") if kinds is _MODELS else ""
                raise TypeError(f"LookupThenModel: {name} must be a {wanted}, got {type(value).__name__}{hint}")
        self.lookup, self.model, self.parts = lookup, model, (lookup, model)
        self.verifies = model.verifies
        self.num_lookahead = max(lookup.num_lookahead, model.num_lookahead)
        if lookup.gamma.adaptive and model.gamma.adaptive:
            model.gamma.goodput = lookup.gamma.goodput  # both draft for the same target

    def propose(self, batch):
        found = self.lookup.find(batch, columns=1)  # the model usually drafts at least one token for the others
        if self.lookup.gamma.adaptive and self.model.gamma.adaptive:
            usual = self.model.gamma.usual_worth(len(batch))
            found = [f if worth >= usual else [] for f, worth in zip(found, self.lookup.gamma.worth)]
        self.looked_up = [bool(f) for f in found]
        draft = self.model.propose(batch, [not f for f in found])
        width = max(max(map(len, found)), 0 if draft is None else draft.tokens.shape[1])
        if width == 0:
            return None
        tokens = upload([f + [-1] * (width - len(f)) for f in found], batch.device)
        if draft is None:
            return Draft(tokens)
        if not any(self.looked_up):
            return draft
        return self._merge(tokens, draft, width)

    def observe(self, outcome):
        if self.model.gamma.adaptive:
            self.model.gamma.goodput.observe(outcome)
            rows = [i for i, looked_up in enumerate(self.looked_up) if not looked_up]
            self.model.gamma.learn(outcome, rows)
        else:
            self.lookup.observe(outcome)

    def _merge(self, tokens, draft, width):
        """Merge looked-up chains [n, width], which are one-hot, with the model's."""
        mine = upload(self.looked_up, tokens.device, torch.bool)[:, None]
        merged = torch.where(mine, tokens, pad(draft.tokens, (0, width - draft.tokens.shape[1]), value=-1))
        if draft.rows is None:
            return replace(draft, tokens=merged)
        n, g, _ = draft.rows.logits.shape
        row = torch.arange(n * g, device=tokens.device).view(n, g).masked_fill(mine, -1)
        return replace(draft, tokens=merged, rows=draft.rows._replace(row=pad(row, (0, width - g), value=-1)))

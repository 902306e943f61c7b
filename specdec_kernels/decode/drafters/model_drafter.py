# SPDX-License-Identifier: Apache-2.0
"""Drafts from a smaller model."""

import torch

import specdec_kernels as sk

from ...registry import RULES
from ..adaptive.acceptance import row_kinds
from ..adaptive.draft_length import make_gamma
from ..interfaces import check_model
from ..proposal import Draft, Drafter
from ..transfers import upload
from .draft_runner import DraftRunner

__all__ = ["ModelDrafter"]


class ModelDrafter(Drafter):
    """Drafter with a smaller model that has its own cache. Each request's sampling parameters apply to its drafts.

    Some rules replace the target's distribution p by another, pi. For those the row after the last draft is computed
    too (one more pass of this model), so that every token is distributed as pi.

    Args:
        model: a Model (models/adapters.py).
        gamma: draft tokens per step. "auto" adapts the number, from 0 to `max_gamma`, to measured acceptance and cost
            (adaptive/draft_length.py). It may differ between requests, except where reading rows would wait for a
            device (transfers.py).

    Raises:
        ValueError: a gamma below 1.

    Source:
        Leviathan et al. 2023; Chen et al. 2023.
    """

    rules, verifies = tuple(RULES), ("token", "block", "race")
    draws_viewed = True

    def __init__(self, model, gamma: int | str = 4, max_gamma: int = 8):
        self.gamma = make_gamma("ModelDrafter", gamma, max_gamma)
        self.model = DraftRunner(check_model("ModelDrafter", "model", model), reach=self.gamma.max + 1)
        self.num_lookahead, self.parts = self.gamma.max + self.model.reach, (self.model,)

    def propose(self, batch, wanted=None):
        """Draft for the batch. wanted [n] bool: the requests to draft for; None: all."""
        limits = [min(self.gamma.max, s.remaining - 1) for s in batch]
        going = [g > 0 and (wanted is None or wanted[i]) for i, g in enumerate(limits)]
        if not self.gamma.begin(len(batch), sum(going)):
            going = [False] * len(batch)
        if not any(going) and not batch.wants_end_row:
            return None
        logits = self.model.catch_up(batch)
        drawn: list[torch.Tensor] = []
        rows: list[sk.Rows] = []
        while any(going):
            i, views = len(drawn), batch.views.after_chain(drawn)
            kinds = (
                row_kinds(batch, self.model.rows(logits, **views), i) if self.gamma.adaptive else [None] * len(batch)
            )
            going = [g and limits[b] > i and self.gamma.keep(b, kinds[b]) for b, g in enumerate(going)]
            if not any(going):
                break
            out = sk.sample(self.model.rows(logits, **batch.sampling, **views), **batch.draws(i, slot=i))
            drawn.append(out.tokens.masked_fill(~upload(going, batch.device, torch.bool)[:, None], -1))
            rows.append(self.model.rows(logits, stats=out.rows.stats))  # Draft adds the views of all rows
            if not self.gamma.pays():
                going = [False] * len(batch)
            if batch.wants_end_row or any(g and limits[b] > i + 1 for b, g in enumerate(going)):
                logits = self.model.extend(drawn[-1][:, 0], i)
        if batch.wants_end_row:
            seen = self.model.rows(logits, **batch.sampling, **batch.views.after_chain(drawn))
            rows.append(self.model.rows(logits, stats=sk.row_stats(seen)))
        if not rows:
            return None
        tokens = torch.cat([Draft.nothing(batch).tokens, *drawn], 1)
        return Draft(tokens, None if batch.race else sk.stack_rows(rows), viewed=True)

    def observe(self, outcome):
        self.gamma.observe(outcome)

# SPDX-License-Identifier: Apache-2.0
"""Drafts from a smaller model."""

import torch

import specdec_kernels as sk

from ...registry import RULES
from ..proposal import Draft, Drafter
from .draft_length import make_gamma
from .draft_runner import DraftRunner

__all__ = ["ModelDrafter"]

_CONFIDENCE = 0.4


def _probability(logits, tokens):
    """The draft's own probability of tokens [n, 1] at temperature 1 -> [n]."""
    stats = sk.row_stats(logits)
    return torch.exp(logits.gather(1, tokens)[:, 0].float() - stats[:, 3] - stats[:, 2])


class ModelDrafter(Drafter):
    """Drafts with a model that has a cache of its own, by each request's own sampling parameters.

    Under a rule that puts a law pi in place of p, the row behind the last draft comes along (one more pass of this
    model), so that every token has law pi.

    Args:
        model: a Model (models/adapters.py).
        gamma: tokens drafted at a time, or "auto": what pays by what has been measured so far, up to `max_gamma`.
        confidence: a row's draft ends once the model's own probability of it, at temperature 1, has fallen below this.
            The token that made it fall stays in the draft, so whether it is drafted never depends on which one it is:
            exact. None: 0.4 with an adaptive gamma (measured best for SmolLM2 and its draft, by a little), else 0.

    Raises:
        ValueError: a gamma below 1.

    Source:
        Leviathan et al. 2023; Chen et al. 2023.
    """

    rules, verifies = tuple(RULES), ("token", "block")

    def __init__(self, model, gamma: int | str = 4, max_gamma: int = 8, confidence: float | None = None):
        self.gamma = make_gamma(gamma, max_gamma)
        self.confidence = (_CONFIDENCE if gamma == "auto" else 0.0) if confidence is None else confidence
        self.model = DraftRunner(model, reach=self.gamma.max + 1)
        self.num_lookahead, self.parts = self.gamma.max + self.model.reach, (self.model,)

    def propose(self, batch):
        limits = [min(self.gamma.value, s.remaining - 1) for s in batch]
        width = max(limits)
        if width < 1 and not batch.wants_end_row:
            return None
        logits, draw_params = self.model.catch_up(batch), batch.draw_params
        drawn: list[torch.Tensor] = []
        rows, stats = [], []
        going, chance = torch.tensor(limits) > 0, torch.ones(len(batch))
        while going.any():
            i = len(drawn)
            out = sk.sample(logits, slot=i, **draw_params)
            drawn.append(out.tokens.masked_fill(~going[:, None], -1))
            rows.append(logits)
            stats.append(out.stats)
            if self.confidence > 0:
                chance *= _probability(logits, out.tokens)
            going &= (torch.tensor(limits) > i + 1) & (chance >= self.confidence)
            if going.any() or batch.wants_end_row:
                logits = self.model.extend(drawn[-1][:, 0], i)
        if batch.wants_end_row:
            rows.append(logits)
            stats.append(sk.row_stats(logits, **batch.sampling_params))
        return Draft(
            torch.cat([torch.empty(len(batch), 0, dtype=torch.int64), *drawn], 1),
            torch.stack(rows, 1),
            torch.stack(stats, 1),
        )

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        self.gamma.observe(drafted, accepted, draft_seconds, target_seconds)

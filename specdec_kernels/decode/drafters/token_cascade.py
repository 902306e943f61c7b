# SPDX-License-Identifier: Apache-2.0
"""Token-level cascades without speculation: the baseline of speculative cascades (Narasimhan et al. 2024)."""

from dataclasses import dataclass

import torch

import specdec_kernels as sk

from ..proposal import Drafter, Proposal, one_hot_stats
from .draft_runner import DraftRunner

__all__ = ["TokenCascade"]

_AHEAD = ("chow", "chow_log")  # decided by the draft's row alone


@dataclass(frozen=True, eq=False)
class KeptDraft(Proposal):
    """Tokens of the draft model's that stay, up to where each request defers to the target or ends."""

    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's
    defers: list[bool]  # else the request ends with its tokens
    row: torch.Tensor  # [n, Vq], stats [n, 4]: the draft's row before its tokens
    stats: torch.Tensor

    @property
    def needs_target(self):
        return self.defers

    def verify(self, logits, batch, method, row):
        """What was kept is not judged again; the token behind it is the target's, or an oracle's: drawn from pi."""
        n, G = self.tokens.shape
        end = self.tokens.new_full((n, 1), -1)
        if logits is None:
            kept = (self.tokens >= 0).sum(1).int()
            return sk.VerifyChainOutput(
                torch.cat((self.tokens, end), 1), kept, torch.zeros(n, G + 1), torch.zeros_like(kept)
            )
        ahead = _ahead(batch)
        # Synthetic at rate 1 accepts whatever the rows say. Kept tokens pass for one-hot drafts.
        rule = torch.where(ahead, sk.RULES["synthetic"], batch.rules["rule"])
        alpha = batch.rules["alpha"].masked_fill(ahead[:, None], 1.0)
        stats = one_hot_stats(torch.cat((self.tokens, end), 1))
        stats[~ahead, 0] = self.stats[~ahead]
        drawn = self.row[:, None].expand(n, G + 1, -1)
        by_rule = dict(rule=rule, alpha=alpha, draft_stats=stats)
        return sk.verify_chain(logits, self.tokens, drawn, target_row=row, **by_rule, **batch.draw_params)


class TokenCascade(Drafter):
    """The draft model writes until the request's rule defers; then the target reads what was written, and writes one
    token.

    ``chow``, ``chow_log``: the draft's row alone decides, so the target is called at deferrals only. ``diff``, ``opt``
    and their log forms weigh the target's row too: they are oracles here, for which the target is called, and counted,
    at every token.

    Each token has law pi, as under a speculative cascade of the same rule.

    Args:
        model: a Model (models/adapters.py) of no more ids than the target.
        longest: the largest max_new_tokens of a request.

    Source:
        Narasimhan et al. 2024.
    """

    rules, verifies = (*_AHEAD, "diff", "diff_log", "opt", "opt_log"), ("token",)

    def __init__(self, model, longest: int = 256):
        self.model, self.num_lookahead = DraftRunner(model, reach=2), longest
        self.vocab_size, self.parts = model.vocab_size, (self.model,)

    def check(self, target, sequences):
        if self.vocab_size > target.vocab_size:
            raise ValueError(
                f"generate: TokenCascade's draft must have at most the target's {target.vocab_size} ids, "
                f"got {self.vocab_size}"
            )
        for s in sequences:
            if s.remaining > self.num_lookahead:
                wanted = f"max_new_tokens must be <= longest={self.num_lookahead}"
                raise ValueError(f"TokenCascade: {wanted}, request {s.index} has {s.remaining}")

    def propose(self, batch):
        ahead, first = _ahead(batch), self.model.catch_up(batch)
        logits, draw_params = first, batch.draw_params
        drawn: list[torch.Tensor] = []
        going, defers = torch.ones(len(batch), dtype=torch.bool), torch.zeros(len(batch), dtype=torch.bool)
        while going.any():
            keeps = ahead & _keeps(logits, batch.rules)
            defers |= going & ~keeps
            going &= keeps
            if not going.any():
                break
            i = len(drawn)
            drawn.append(sk.sample(logits, slot=i, **draw_params).tokens.masked_fill(~going[:, None], -1))
            going &= torch.tensor(
                [i + 1 < s.remaining and t not in s.request.eos for s, t in zip(batch, drawn[i][:, 0].tolist())]
            )
            if going.any():
                logits = self.model.extend(drawn[i][:, 0], i)
        tokens = torch.cat([torch.empty(len(batch), 0, dtype=torch.int64), *drawn], 1)
        return KeptDraft(tokens, defers.tolist(), first, sk.row_stats(first, **batch.sampling_params))


def _ahead(batch):
    return torch.tensor([s.request.rule in _AHEAD for s in batch])


def _keeps(logits, rules):
    """chow: max q1 >= 1 - alpha; chow_log: H(q1) <= alpha; of the unscaled rows. NaN defers."""
    gap, alpha = sk.row_gap(logits, logits), rules["alpha"][:, 0]
    return torch.where(rules["rule"] == sk.RULES["chow"], gap[:, 5] >= 1 - alpha, gap[:, 3] <= alpha)

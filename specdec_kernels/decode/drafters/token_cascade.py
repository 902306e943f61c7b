# SPDX-License-Identifier: Apache-2.0
"""Token-level cascades without speculation, the baseline of speculative cascades (Narasimhan et al. 2024)."""

from dataclasses import dataclass

import torch

import specdec_kernels as sk

from ..interfaces import check_model, check_no_views
from ..proposal import Draft, Drafter, Proposal
from ..transfers import upload
from .draft_runner import DraftRunner

__all__ = ["TokenCascade"]

_AHEAD = ("chow", "chow_log")  # these rules decide from the draft's row alone


@dataclass(frozen=True, eq=False)
class KeptDraft(Proposal):
    """The draft model's tokens that each request keeps before it defers to the target or ends."""

    tokens: torch.Tensor  # [n, G] int64; -1 after a row's last
    defers: list[bool]  # False: the request ends after its tokens
    first: torch.Tensor  # [n, Vq]: the draft's row that predicts each request's first token

    @property
    def needs_target(self):
        return self.defers

    def verify(self, logits, batch, method, row):
        """Accept all kept tokens, and draw the next one: from the target, or for oracle rules from the rule's pi."""
        n, G = self.tokens.shape
        end = self.tokens.new_full((n, 1), -1)
        if logits is None:
            kept = (self.tokens >= 0).sum(1).int()
            return sk.VerifyChainOutput(
                torch.cat((self.tokens, end), 1),
                kept,
                torch.zeros(n, G + 1, dtype=torch.float32, device=kept.device),
                torch.zeros_like(kept),
            )
        ahead = upload(_ahead(batch), batch.device, torch.bool)
        # The rule "synthetic" at rate 1 accepts every draft. Kept tokens are passed as one-hot drafts.
        rule = torch.where(ahead, sk.RULES["synthetic"], batch.rules["rule"])
        alpha = batch.rules["alpha"].masked_fill(ahead[:, None], 1.0)
        drawn = torch.full((n, G + 1), -1, dtype=torch.int64, device=batch.device)
        drawn[:, 0] = torch.arange(n, device=batch.device).masked_fill(ahead, -1)
        target, draft = (sk.Rows(z, **batch.sampling, row=i) for z, i in ((logits, row), (self.first, drawn)))
        return sk.verify_chain(target, self.tokens, draft, rule=rule, alpha=alpha, **batch.randomness)


class TokenCascade(Drafter):
    """Cascade drafter: the draft model decodes until the request's rule defers, then the target adds one token.

    The rules ``chow`` and ``chow_log`` read the draft's row alone, so the target is called at deferrals only. ``diff``,
    ``opt`` and their log forms also read the target's row. They are oracles here: the target is called, and counted, at
    every token.

    Each token is distributed as the rule's pi, as under a speculative cascade of the same rule. Before it drafts a
    token, the host must know whether the last one was kept and whether it ended its request. So each token waits for
    the device once.

    Args:
        model: a Model (models/adapters.py) with at most as many ids as the target.
        longest: the largest max_new_tokens of a request.

    Source:
        Narasimhan et al. 2024.
    """

    rules, verifies = (*_AHEAD, "diff", "diff_log", "opt", "opt_log"), ("token",)

    def __init__(self, model, longest: int = 256):
        self.model, self.num_lookahead = DraftRunner(check_model("TokenCascade", "model", model), reach=2), longest
        self.vocab_size, self.parts = model.vocab_size, (self.model,)

    def follow(self, target, cache):
        """Do nothing: the target has not read the model's tokens yet, so there are no states to read."""

    def check(self, target, sequences):
        if self.vocab_size > target.vocab_size:
            raise ValueError(
                f"TokenCascade: the draft model must have at most the target's {target.vocab_size} ids, "
                f"got {self.vocab_size}"
            )
        for s in sequences:
            check_no_views("TokenCascade", s.index, s.request)
            if s.request.logprobs is not None:
                why = "since most tokens have no row of the target"
                raise ValueError(
                    f"TokenCascade: logprobs must be None, {why}, request {s.index} has {s.request.logprobs}"
                )
            if s.remaining > self.num_lookahead:
                wanted = f"max_new_tokens must be <= longest={self.num_lookahead}"
                raise ValueError(f"TokenCascade: {wanted}, request {s.index} has {s.remaining}")

    def propose(self, batch):
        first = logits = self.model.by_target_id(self.model.catch_up(batch))
        randomness = batch.randomness
        drawn, going = [Draft.nothing(batch).tokens], _ahead(batch)
        defers = [not ahead for ahead in going]
        while any(going):
            i = len(drawn) - 1
            keeps = upload(going, batch.device, torch.bool) & _keeps(logits, batch.rules)
            tokens = sk.sample(sk.Rows(logits, **batch.sampling), slot=i, **randomness).tokens
            tokens = tokens.masked_fill(~keeps[:, None], -1)
            row = [token for [token] in batch.readback.ask(tokens).rows]
            defers = [late or (goes and t < 0) for late, goes, t in zip(defers, going, row)]
            going = [0 <= t and i + 1 < s.remaining and t not in s.request.eos for s, t in zip(batch, row)]
            if max(row) >= 0:
                drawn.append(tokens)
            if any(going):
                logits = self.model.by_target_id(self.model.extend(tokens[:, 0], i))
        return KeptDraft(torch.cat(drawn, 1), defers, first)


def _ahead(batch) -> list[bool]:
    return [s.request.rule in _AHEAD for s in batch]


def _keeps(logits, rules):
    """Return which rows keep the draft's token: chow if max q1 >= 1 - alpha, chow_log if H(q1) <= alpha.

    q1 is the draft's distribution at temperature 1. NaN defers.
    """
    gap, alpha = sk.row_gap(logits, logits), rules["alpha"][:, 0]
    return torch.where(rules["rule"] == sk.RULES["chow"], gap[:, 5] >= 1 - alpha, gap[:, 3] <= alpha)

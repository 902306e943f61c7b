# SPDX-License-Identifier: Apache-2.0
"""Token-level cascades without speculation: the baseline of speculative cascades (Narasimhan et al. 2024)."""

from typing import NamedTuple

import torch

import specdec_kernels as sk

from ..proposal import Draft
from .draft_runner import Follower

__all__ = ["PlainCascade"]

_AHEAD = ("chow", "chow_log")  # decided by the draft's row alone


class Kept(NamedTuple):
    """Tokens of the draft model's that stay, up to where each row defers to the target or ends."""

    tokens: torch.Tensor  # [n, G] int64; -1 ends a row's
    called: list[bool]  # whether the row defers; else the request ends with its tokens
    row: torch.Tensor  # [n, Vq], stats [n, 4]: the draft's row before its tokens
    stats: torch.Tensor

    branches = None

    def verify(self, logits, batch, method):
        """What was kept is not judged again; the token behind it is the target's, or an oracle's: drawn from pi."""
        n, G = self.tokens.shape
        if logits is None:
            kept = (self.tokens >= 0).sum(1).int()
            rows = torch.cat((self.tokens, self.tokens.new_full((n, 1), -1)), 1)
            return sk.VerifyChainOutput(rows, kept, torch.zeros(n, G + 1), torch.zeros_like(kept))
        ahead = _ahead(batch)
        rule = torch.where(
            ahead, sk.RULES["synthetic"], batch.rules["rule"]
        )  # at rate 1 it accepts whatever the rows say
        alpha = batch.rules["alpha"].masked_fill(ahead[:, None], 1.0)
        stats = torch.zeros(n, G + 1, 4)  # kept tokens pass for one-hot drafts, whose rows are not read
        stats[..., 0] = torch.inf
        stats[:, :G, 2] = self.tokens.clamp(min=0)
        stats[~ahead, 0] = self.stats[~ahead]
        drawn = dict(draft_logits=self.row[:, None].expand(n, G + 1, -1), draft_stats=stats)
        return sk.verify_chain(logits, self.tokens, rule=rule, alpha=alpha, **drawn, **batch.randomness)

    settle, tested = Draft.settle, Draft.tested


class PlainCascade:
    """The draft model writes until the request's rule defers; then the target reads what was written, and writes one
    token.

    ``chow``, ``chow_log``: the draft's row alone decides, so the target is called at deferrals only. ``diff``, ``opt``
    and their log forms weigh the target's row too: they are oracles here, for which the target is called, and counted,
    at every token.

    Each token has law pi, as under a speculative cascade of the same rule. longest: the largest max_new_tokens of a
    request.
    """

    rules, verifies = (*_AHEAD, "diff", "diff_log", "opt", "opt_log"), ("token",)

    def __init__(self, model, longest: int = 256):
        self.model, self.margin, self.vocab_size = Follower(model, reach=2), longest, model.vocab_size

    def begin(self, slots, capacity):
        self.model.begin(slots, capacity)

    def admit(self, slot, sequence):
        if sequence.remaining > self.margin:
            wanted = f"max_new_tokens must be <= longest={self.margin}"
            raise ValueError(f"PlainCascade: {wanted}, request {sequence.index} has {sequence.remaining}")
        self.model.admit(slot, sequence)

    def move(self, source, target):
        self.model.move(source, target)

    def propose(self, batch):
        ahead, first = _ahead(batch), self.model.catch_up(batch)
        logits, randomness, drawn = first, batch.randomness, []
        going, called = torch.ones(len(batch), dtype=torch.bool), torch.zeros(len(batch), dtype=torch.bool)
        while going.any():
            keeps = ahead & _keeps(logits, batch.rules)
            called |= going & ~keeps
            going &= keeps
            if not going.any():
                break
            i = len(drawn)
            drawn.append(sk.sample(logits, slot=i, **randomness).tokens.masked_fill(~going[:, None], -1))
            going &= torch.tensor(
                [i + 1 < s.remaining and t not in s.request.eos for s, t in zip(batch, drawn[i][:, 0].tolist())]
            )
            if going.any():
                logits = self.model.extend(drawn[i][:, 0], i)
        tokens = torch.cat([torch.empty(len(batch), 0, dtype=torch.int64), *drawn], 1)
        return Kept(tokens, called.tolist(), first, sk.row_stats(first, **batch.filters))

    def observe(self, drafted, accepted, draft_seconds, target_seconds):
        pass


def _ahead(batch):
    return torch.tensor([s.request.rule in _AHEAD for s in batch])


def _keeps(logits, rules):
    """chow: max q1 >= 1 - alpha; chow_log: H(q1) <= alpha; of the unscaled rows. NaN defers."""
    gap, alpha = sk.row_gap(logits, logits), rules["alpha"][:, 0]
    return torch.where(rules["rule"] == sk.RULES["chow"], gap[:, 5] >= 1 - alpha, gap[:, 3] <= alpha)

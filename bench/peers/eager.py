# SPDX-License-Identifier: Apache-2.0
"""The verification step and the distributions in plain torch.

The code is optimised: rows are cast once, and filters read only the top k logits where possible.
"""

from __future__ import annotations

import torch


def log_law(
    z: torch.Tensor, temperature: torch.Tensor | None = None, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> torch.Tensor:
    """Return float32 log-probabilities of rows [..., V]; temperature broadcasts against them."""
    if temperature is not None:
        z = z.float() / temperature
    if min_p:
        z = z.masked_fill(z < z.amax(-1, keepdim=True) + torch.tensor(min_p).log().item(), -torch.inf)
    if top_k:
        kept = z.topk(top_k, -1).values
        if top_p < 1:
            law = kept.softmax(-1, dtype=torch.float32)
            kept = kept.masked_fill(law.cumsum(-1) - law >= top_p, torch.inf)
        z = z.masked_fill(z < kept.amin(-1, keepdim=True), -torch.inf)
    elif top_p < 1:
        ordered, ids = z.float().sort(-1)
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
        z = z.masked_fill(drop.scatter(-1, ids, drop), -torch.inf)
    return z.log_softmax(-1, dtype=torch.float32)


def step(
    target: torch.Tensor,
    tokens: torch.Tensor,
    draft: torch.Tensor | None,
    draft_stats: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    draft_temperature: torch.Tensor | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> torch.Tensor:
    """Return the tokens of a batched verification step. draft is None for one-hot drafts.

    (p - q)+ is computed only at the stop row, and log_softmax of the draft only if its stats are not given.
    """
    B, G = tokens.shape
    t, t_draft = (None if x is None else x.view(-1, 1, 1) for x in (temperature, draft_temperature))
    lp = log_law(target, t, top_k, top_p, min_p)
    ids, row = tokens.unsqueeze(-1), torch.arange(B, device=target.device)
    if draft is None:
        lq_drawn = torch.zeros_like(ids, dtype=torch.float32)
    elif draft_stats is None:
        lq = log_law(draft, t_draft)
        lq_drawn = lq.gather(-1, ids)
    else:
        scale, _, log_norm, top = draft_stats.unsqueeze(-1).unbind(-2)
        lq_drawn = (draft.gather(-1, ids).float() - top) * scale - log_norm
    ratio = (lp[:, :G].gather(-1, ids) - lq_drawn).squeeze(-1).exp()
    n = (torch.rand(B, G, device=target.device) < ratio).cumprod(1).sum(1)
    last = n.clamp(max=G - 1)
    if draft is None:
        q = torch.zeros_like(lp[:, 0]).scatter_(1, tokens[row, last].unsqueeze(1), 1.0)
    elif draft_stats is None:
        q = lq[row, last].exp()
    else:
        q = ((draft[row, last].float() - top[row, last]) * scale[row, last] - log_norm[row, last]).exp()
    q = torch.where((n < G).unsqueeze(-1), q, 0.0)
    final = torch.multinomial((lp[row, n].exp() - q).clamp_(min=0), 1)
    return emitted(tokens, n, final)


def greedy(target: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    best = target.argmax(-1)
    n = (best[:, :-1] == tokens).cumprod(1).sum(1)
    return emitted(tokens, n, best.gather(1, n.unsqueeze(1)))


def emitted(tokens: torch.Tensor, n: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
    """Return [B, G+1]: the n accepted tokens, the final one, then -1."""
    out = torch.cat([tokens, tokens.new_full((tokens.size(0), 1), -1)], 1)
    out.scatter_(1, n.unsqueeze(1), final)
    return out.masked_fill_(torch.arange(out.size(1), device=out.device) > n.unsqueeze(1), -1)

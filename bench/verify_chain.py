# SPDX-License-Identifier: Apache-2.0
"""verify_chain against the best eager torch we could write, transformers' own loop, and a plain read of the bytes.

Bytes: each row that a request must read, once. Without stats that is its target rows and its draft rows up to the stop;
with the drafter's stats handed over, its target rows up to the stop and the draft row of a rejection.
"""

from __future__ import annotations

from functools import partial

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits

G = 5
CLOSENESS = 0.45  # noise on the target's logits that gives a draft accepted about 70% of the time
VARIANTS = {"": {}, " stats": {}, " stats T=.7 top_k=50 top_p=.9": {"temperature": 0.7, "top_k": 50, "top_p": 0.9}}


def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for V in (49152, 151936):
            for B in (8, 64):
                for variant in VARIANTS:
                    yield Case(f"B={B} V={V} {dtype}{variant}", partial(_step, B, V, dtype, variant, device))
    for call in ("torch.ops", "wrapper"):
        yield Case(f"B=1 V=64 {call}", partial(_call, call, device))


def eager(target: torch.Tensor, tokens: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Batched speculative sampling in plain torch: one log_softmax a side, (p - q)+ only at the stop row."""
    B, G = tokens.shape
    lp, lq = target.float().log_softmax(-1), draft.float().log_softmax(-1)
    ids = tokens.unsqueeze(-1)
    ratio = (lp[:, :G].gather(-1, ids) - lq.gather(-1, ids)).squeeze(-1).exp()
    n = (torch.rand(B, G, device=target.device) < ratio).cumprod(1).sum(1)
    row = torch.arange(B, device=target.device)
    p = lp[row, n].exp()
    rejected = n < G
    q = torch.where(rejected.unsqueeze(-1), lq[row, n.clamp(max=G - 1)].exp(), 0.0)
    final = torch.multinomial((p - q).clamp_(min=0), 1)
    out = torch.cat([tokens, tokens.new_full((B, 1), -1)], 1)
    out.scatter_(1, n.unsqueeze(1), final)
    return out.masked_fill_(torch.arange(G + 1, device=target.device) > n.unsqueeze(1), -1)


def transformers_loop(target: torch.Tensor, tokens: torch.Tensor, draft: torch.Tensor) -> None:
    from transformers.generation.utils import _speculative_sampling

    for b in range(tokens.size(0)):
        _speculative_sampling(tokens[b : b + 1], draft[b : b + 1].float(), tokens.size(1), target[b : b + 1].float())


def _step(B: int, V: int, dtype: str, variant: str, device: str) -> Work:
    generator = torch.Generator().manual_seed(1)
    target = logits(B, G + 1, V, dtype=torch.float32, device=device, seed=B)
    draft = (target[:, :G] + torch.empty(B, G, V).normal_(0, CLOSENESS, generator=generator).to(device)).to(DTYPES[dtype])
    target = target.to(DTYPES[dtype])
    seed, offset = torch.arange(B, device=device), torch.zeros(B, dtype=torch.int64, device=device)
    rows = {"seed": seed.repeat_interleave(G), "offset": offset.repeat_interleave(G), "slot": torch.arange(G, device=device).repeat(B)}
    drawn = sk.sample(draft.view(B * G, V), **rows)
    tokens = drawn.tokens.view(B, G)
    arguments = {"seed": seed, "offset": offset} | VARIANTS[variant]
    if "stats" in variant:
        arguments["draft_stats"] = drawn.stats.view(B, G, 4)

    n = sk.verify_chain(target, tokens, draft, **arguments).num_accepted
    target_rows, draft_rows = int((n + 1).sum()), int((n < G).sum() if "stats" in variant else (n + 1).clamp(max=G).sum())
    nbytes = (target_rows + draft_rows) * V * target.element_size()
    peers = {"sum": torch.ones(nbytes // 4, device=device).sum, "eager": lambda: eager(target, tokens, draft)}
    if not variant:
        peers["transformers"] = lambda: transformers_loop(target, tokens, draft)
    return Work(lambda: sk.verify_chain(target, tokens, draft, **arguments), nbytes, peers)


def _call(how: str, device: str) -> Work:
    """What a call costs before any row is read."""
    target, draft = (logits(1, n, 64, dtype=torch.float32, device=device, seed=n) for n in (G + 1, G))
    tokens = torch.zeros(1, G, dtype=torch.int64, device=device)
    seed, offset = torch.tensor([1], device=device), torch.tensor([0], device=device)
    op, no = torch.ops.specdec.verify_chain, [None] * 4
    calls = {
        "torch.ops": lambda: op(target, tokens, draft, None, G, None, *no, None, None, *no, 0, 0, seed, offset, None),
        "wrapper": lambda: sk.verify_chain(target, tokens, draft, seed=seed, offset=offset),
    }
    return Work(calls[how], peers={"eager": lambda: eager(target, tokens, draft)}, calls=500)

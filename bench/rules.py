# SPDX-License-Identifier: Apache-2.0
"""verify_chain by rule and by block, beside the exact rule token by token on the same rows: every draft is accepted (u = 0), the
draft's stats are handed over, T = 1. The draft's rows are flatter than the target's, so that no comparison is decided early.

A label says how often a row of p and of q is read at most (typical acceptance and opt often need not); the exact rule reads p once. `deferred`: the drafted ids are the ones that the
rule does not keep, so that eta is summed. `scan`: block verification that fails everywhere (u just below 1) and draws at 0.
"""

from __future__ import annotations

import functools

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits

G = 5
ALMOST_ONE = 1 - 2.0**-53
RULES = [  # rule, alpha, method, case, reads of p, of q
    ("chow", 0.9, "token", "", 1, 0),
    ("chow_log", 20.0, "token", "", 1, 1),
    ("diff", 0.9, "token", "", 1, 0),
    ("diff_log", 20.0, "token", "", 2, 1),
    ("opt", 5.0, "token", "", 2, 1),
    ("opt_log", 50.0, "token", "", 3, 2),
    ("token_v1", 0.0, "token", "deferred", 1, 1),
    ("token_v2", 0.0, "token", "deferred", 2, 1),
    ("token_v3", 0.0, "token", "deferred", 2, 1),
    ("lenience", 0.7, "token", "", 1, 0),
    ("lossy", 0.3, "token", "", 1, 0),
    ("ensemble", 0.5, "token", "", 1, 0),
    ("typical", (1.0, 0.05), "token", "", 2, 0),
    ("top_n", (10, 1.0), "token", "", 2, 0),
    ("synthetic", 0.8, "token", "", 1, 0),
    ("thresholds", (0.5, 0.9), "token", "", 1, 0),
    ("exact", None, "block", "", 1, 0),
    ("exact", None, "block", "scan", 2, 1),
]


def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for rule, alpha, method, how, p, q in RULES:
            parts = [rule, *[method] * (method == "block"), *[how] * bool(how), f"p{p} q{q}", f"B=8 V=151936 {dtype}"]
            yield Case(" ".join(parts), functools.partial(_step, rule, alpha, method, how, dtype, device))


def _step(rule: str, alpha: object, method: str, how: str, dtype: str, device: str) -> Work:
    from types import SimpleNamespace

    B, V = 8, 151936
    target = logits(B, G + 1, V, dtype=torch.float32, device=device, seed=B)
    draft = (0.8 * target[:, :G] + torch.empty(B, G, V, device=device).normal_(0, 0.3, generator=torch.Generator(device).manual_seed(1))).to(DTYPES[dtype])
    target = target.to(DTYPES[dtype])
    slot = {"seed": torch.arange(B, device=device).repeat_interleave(G), "offset": torch.zeros(B * G, dtype=torch.int64, device=device)}
    drawn = sk.sample(draft.view(B * G, V), **slot, slot=torch.arange(G, device=device).repeat(B))
    tokens = drawn.tokens.view(B, G)
    if how == "deferred" or rule in ("typical", "top_n"):  # ids of some probability, none of them the largest
        tokens = target[:, :G].topk(3).indices[..., 2]
    u = torch.full((B, G + 1), ALMOST_ONE if how == "scan" else 0.0, dtype=torch.float64, device=device)
    x = SimpleNamespace(target=target, tokens=tokens, draft=draft, stats=drawn.stats.view(B, G, 4), u=u, zero=torch.zeros_like(u))

    def ours(x):
        return sk.verify_chain(x.target, x.tokens, x.draft, draft_stats=x.stats, uniforms=x.u, method=method, rule=rule, alpha=alpha)

    def exact(x):
        return sk.verify_chain(x.target, x.tokens, x.draft, draft_stats=x.stats, uniforms=x.zero)

    return Work(x, ours, target.nbytes, peers={"exact": exact})

# SPDX-License-Identifier: Apache-2.0
"""Benchmark of verify_chain with each rule and with blocks, against the exact rule token by token on the same rows.

Unless a label says otherwise, every draft is accepted (u = 0) and T = 1. The draft's stats are given. The draft's rows
are flatter than the target's, so no comparison is decided early.

A label shows how often a row of p and of q is read; the exact rule reads p once. A CPU sums entropies in the pass that
computes a distribution, and both rows' entropies and TV in one pass; a GPU takes a pass for each. Labels:

- `deferred`: the rule does not keep the drafted ids, so eta (the draft's mass that the rule defers) is summed.
- `entropy`: drafts are between the bounds of typical acceptance, so the entropy decides. `bounds`: the bounds accept.
- `third`: drafts are the row's third largest id. `largest`: its largest.
- `T=.7`: both models at that temperature, so confidences are read from other distributions than those sampled from.
- `scan`: block verification that rejects everywhere (u just below 1) and draws at position 0.
"""

from __future__ import annotations

import functools
import math

import torch

import specdec_kernels as sk
from bench.harness import DTYPES, Case, Cases, Work, logits
from bench.peers import switched

G = 5
ALMOST_ONE = 1 - 2.0**-53
RULES = [  # rule, alpha, method, case, reads of p, of q
    ("chow", 0.9, "token", "", 1, 0),
    ("chow_log", 20.0, "token", "", 1, 1),
    ("diff", 0.9, "token", "", 1, 0),
    ("diff_log", 20.0, "token", "", 1, 1),
    ("opt", 5.0, "token", "", 2, 1),
    ("opt_log", 50.0, "token", "", 2, 1),
    ("opt_log", 50.0, "token", "T=.7", 3, 2),
    ("token_v1", 0.0, "token", "deferred", 1, 1),
    ("token_v2", 0.0, "token", "deferred", 2, 1),
    ("token_v3", 0.0, "token", "deferred", 2, 1),
    ("lenience", 0.7, "token", "", 1, 0),
    ("lossy", 0.3, "token", "", 1, 0),
    ("ensemble", 0.5, "token", "", 1, 0),
    ("typical", (1.0, 1e-6), "token", "entropy", 1, 0),
    ("typical", (1.0, 1e-6), "token", "bounds", 1, 0),
    ("relaxed", (10, 1.0), "token", "third", 1, 0),
    ("relaxed", (10, 1.0), "token", "largest", 1, 0),
    ("relaxed", (10, 1.0), "token", "third T=.7", 2, 0),
    ("synthetic", 0.8, "token", "", 1, 0),
    ("thresholds", (0.5, 0.9), "token", "", 1, 0),
    ("exact", None, "block", "", 1, 0),
    ("exact", None, "block", "scan", 2, 1),
]


def cases(device: str) -> Cases:
    for dtype in ("fp32", "bf16"):
        for rule, alpha, method, how, p, q in RULES:
            parts = [rule, *[method] * (method == "block"), *[how] * bool(how), f"p{p} q{q}", f"B=8 V=151936 {dtype}"]
            yield Case(" ".join(parts), functools.partial(_step, rule, alpha, method, how, dtype, 151936, device))


def _step(rule: str, alpha: object, method: str, how: str, dtype: str, V: int, device: str) -> Work:
    from types import SimpleNamespace

    B, T = 8, 0.7 if "T=.7" in how else None
    target = logits(B, G + 1, V, dtype=torch.float32, device=device, seed=B)
    noise = torch.empty(B, G, V, device=device).normal_(0, 0.3, generator=torch.Generator(device).manual_seed(1))
    draft = (0.8 * target[:, :G] + noise).to(DTYPES[dtype])
    target = target.to(DTYPES[dtype])
    random = {
        "seed": torch.arange(B, device=device).repeat_interleave(G),
        "offset": torch.zeros(B * G, dtype=torch.int64, device=device),
    }
    slots = torch.arange(G, device=device).repeat(B)
    drawn = sk.sample(sk.Rows(draft.view(B * G, V), temperature=T), slot=slots, **random)
    tokens = drawn.tokens.view(B, G) if (ids := _drafts(rule, alpha, how, target[:, :G])) is None else ids
    x = SimpleNamespace(target=target, tokens=tokens, draft=draft, stats=drawn.rows.stats.view(B, G, 4))
    x.T = None if T is None else torch.full((B,), T, device=device)
    x.zero = torch.zeros(B, G + 1, dtype=torch.float64, device=device)
    x.u = torch.full_like(x.zero, ALMOST_ONE if how == "scan" else 0.0)

    def exact(x, **how):
        target, draft = sk.Rows(x.target, temperature=x.T), sk.Rows(x.draft, stats=x.stats)
        return sk.verify_chain(target, x.tokens, draft, **{"uniforms": x.zero} | how)

    def ours(x):
        return exact(x, uniforms=x.u, method=method, rule=rule, alpha=alpha)

    if how != "scan" and not (ours(x).num_accepted == G).all():
        raise AssertionError("a draft was rejected, so this is not what every draft costs")
    work = Work(x, ours, target.nbytes, peers={"exact": exact})
    if device == "cuda":
        work.peer("ours, one block", lambda: switched.same(ours))
    return work


def _drafts(rule: str, alpha: object, how: str, target: torch.Tensor) -> torch.Tensor | None:
    """Return drafted ids for the case `how` of a rule; None: ids drawn from the draft."""
    if how == "entropy":  # delta exp(-H) < p <= delta max p, and eps is 1
        log_p = target.float().log_softmax(-1)
        middle = (log_p.amax(-1) + (log_p.exp() * log_p).sum(-1)) / 2 + math.log(alpha[1])
        return (log_p - middle[..., None]).abs().argmin(-1)
    if how in ("largest", "bounds"):
        return target.argmax(-1)
    if how == "deferred" or rule == "relaxed":  # an id of some probability, not the largest
        return target.topk(3).indices[..., 2]
    return None

# SPDX-License-Identifier: Apache-2.0
"""Batches of requests with different rules, on rows of different kinds."""

import torch
from support import cases, tiers
from support.backends import scale

from specdec_kernels.rules import LAWS, TABLE

SLOW = ("reference", "triton-interpret")  # backends on which a request under a rule takes a tenth of a second
FEW = 8


def count(B, backend):
    """Return how many of B requests a test takes.

    On slow backends it takes FEW, and the tests share the rules between them. Elsewhere it takes enough for every rule.
    """
    least = 40 if backend in tiers.SIMULATED and tiers.TIER != "all" else 70
    return min(B, FEW) if backend in SLOW else scale(B, backend, least=min(B, least))


# Two choices of the parameters of each rule that has some: one near the strict end, none where ties are common.
ALPHAS = {
    "exact": [()],
    "chow": [(0.35,), (0.8,)],
    "chow_log": [(0.4,), (1.9,)],
    "diff": [(0.02,), (0.4,)],
    "diff_log": [(0.05,), (0.7,)],
    "opt": [(0.3,), (1.1,)],
    "opt_log": [(0.3,), (2.5,)],
    "token_v1": [(0.07,), (0.6,)],
    "token_v2": [(0.1,), (0.6,)],
    "token_v3": [(0.3,), (0.93,)],
    "lenience": [(0.8,), (0.3,)],
    "lossy": [(0.1,), (0.6,)],
    "ensemble": [(0.9,), (0.25,)],
    "typical": [(0.09, 0.3), (0.5, 0.9)],
    "relaxed": [(1, 0.3), (3, 0.9)],
    "synthetic": [(0.2,), (0.8,)],
    "thresholds": [(0.9, 0.95), (0.35, 0.6)],
}
CHOICES = {
    "token": [(name, a) for name in TABLE for a in ALPHAS[name]],
    "block": [(name, a) for name in LAWS for a in ALPHAS[name]],
}


def rules(B, method="token", names=None, shift=0):
    """Return rule [B] and alpha [B, 2] of requests that take turns in `names`, out of step with the kinds of rows."""
    choices = [c for c in CHOICES[method] if names is None or c[0] in names]
    picked = [choices[(b + shift + b // len(cases.KINDS)) % len(choices)] for b in range(B)]
    alpha = [[*a, *[p.default for p in TABLE[name].parameters[len(a) :]], 0.5, 0.5][:2] for name, a in picked]
    return {
        "rule": torch.tensor([TABLE[name].code for name, _ in picked]),
        "alpha": torch.tensor(alpha, dtype=torch.float32),
    }


def chain(seed, B, G, V, method="token", names=None, bonus_row=False, shift=0, **how):
    """Return keyword arguments of verify_chain for a batch of mixed rules.

    bonus_row: the draft also has a row for the bonus position. shift: rotates the order of the rules.
    """
    args = cases.chain(seed, B, G, V, **how) | rules(B, method, names, shift) | {"method": method}
    if bonus_row and args["draft_logits"] is not None:
        last, _ = cases.rows_pair(seed + 5, B, args["draft_logits"].shape[-1], dtype=args["draft_logits"].dtype)
        args["draft_logits"] = torch.cat([args["draft_logits"], last[:, None]], 1)
    return args

# SPDX-License-Identifier: Apache-2.0
"""`rule` and `alpha` as torch.ops.specdec.* are given them, checked (csrc/binding/rule_arguments.h)."""

from __future__ import annotations

import torch

from specdec_kernels.rules import NAMES, TABLE

from ..core import check
from ..core.check import that
from ..core.row import Values
from .rule import Alpha, Rules

NAN = float("nan")


def rules_of(op: str, rule, alpha, numbers: check.Numbers, block: bool, like, B: int, seen: int, G=None) -> Rules:
    """rule [B] or [1] and alpha [B] or [B, 2], or of a chain's G positions [B, G, 1] or [B, G, 2]; or numbers. Values
    of tensors are looked at only on the CPU, of the first `seen`."""
    code, *of_alpha = numbers.values
    has_numbers = of_alpha != [None, None]
    that(rule is None or code is None, op, "rule must be a tensor or a number, got both")
    that(alpha is None or not has_numbers, op, "alpha must be a tensor or numbers, got both")
    given = rule is not None or code is not None
    that(given or (alpha is None and not has_numbers), op, "alpha needs a rule, got none")
    codes = check.per_row(op, "rule", rule, B, like) if code is None else Values(code, None)
    if has_numbers:
        alpha = Alpha(*(NAN if x is None else x for x in of_alpha))
    elif alpha is not None:
        alpha = check_alpha(op, alpha, like, B, G)
    one = rule is None and not isinstance(alpha, torch.Tensor)
    if given and (one or like.device.type == "cpu"):
        asked = [code] * (1 if one else seen) if rule is None else rule.expand(B)[:seen].tolist()
        check_rules(op, asked, alpha, block, "" if one else " at index {}")
    if not isinstance(alpha, torch.Tensor):
        return Rules(codes, alpha, None, False, False)
    each, pairs, positions = alpha.size(0) != 1, alpha.dim() > 1 and alpha.size(-1) == 2, alpha.dim() == 3
    return Rules(codes, alpha.transpose(0, 1).contiguous() if positions else alpha, each, pairs, positions)


def check_alpha(op: str, alpha: torch.Tensor, like, B: int, G: int | None) -> torch.Tensor | None:
    """Contiguous; None where nothing is in it."""
    check.device(op, "alpha", alpha, like)
    check.dtype(op, "alpha", alpha, torch.float32)
    more = "" if G is None else f" or [{B}, {G}, 1]"
    fits = tuple(alpha.shape[1:]) in [(), (2,), *([] if G is None else [(G, 1), (G, 2)])]
    wanted = f"alpha must have shape [{B}] or [{B}, 2]{more}, got {list(alpha.shape)}"
    that(alpha.dim() > 0 and fits and alpha.size(0) in (B, 1), op, wanted)
    return alpha.contiguous() if alpha.numel() else None


def check_rules(op: str, codes: list, alpha, block: bool, at: str) -> None:
    """The rules of requests, with parameters of each or for all; `at` says where a request's stand."""
    for b, code in enumerate(codes):
        here = at.format(b)
        that(code in NAMES, op, f"rule must be a code from 0 to {len(TABLE) - 1}, got {code:g}{here}")
        name, rule = NAMES[code], TABLE[NAMES[code]]
        wanted = f"rule {name} is no law, so method must be token, got block{here}"
        that(not block or rule.defines_distribution, op, wanted)
        for values in alphas_of(alpha, b)[: None if name == "synthetic" else 1]:
            for which, parameter, x in zip(("alpha", "the second alpha"), rule.parameters, values):
                wanted = f"{which} of rule {name} must be in {parameter.range}, got {x:g}{here}"
                that(x is None or x in parameter, op, wanted)


def alphas_of(alpha, b: int) -> list:
    """Of request b, for each position or for all: the parameters that are given."""
    if alpha is None:
        return []
    if not isinstance(alpha, torch.Tensor):
        return [[None if x != x else x for x in alpha]]
    own = alpha[b if alpha.size(0) > 1 else 0]
    return own.view(-1, own.size(-1) if own.dim() and own.size(-1) == 2 else 1).tolist()

# SPDX-License-Identifier: Apache-2.0
"""`rule` and `alpha` as the ops take them."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check
from specdec_kernels.registry import CHAIN_METHODS, FLT_MAX, RULES, TREE_METHODS, ChainMethod, TreeMethod, rule_named

_METHODS: dict[str, ChainMethod | TreeMethod] = {**CHAIN_METHODS, **TREE_METHODS}


def arguments(
    op: str, method: str, rule, alpha, n: int, device: torch.device, positions: int | None = None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """A rule's name or [n] codes, and alpha: None, a number, a pair, [n] or [n, 2] -> tensors; (None, None) for the
    exact rule. Of a chain's `positions` the rule "synthetic" takes as many rates: a tuple, or [n, positions]."""
    if alpha is None and isinstance(rule, str) and rule == "exact":
        return None, None
    if isinstance(rule, torch.Tensor):
        _check.tensor(op, "rule", rule, _check.INTEGERS, device)
        if rule.dim() != 1 or rule.size(0) not in (n, 1):
            raise ValueError(f"{op}: rule must be a name or have shape [{n}], got {list(rule.shape)}")
        return rule, _tensor(op, alpha, n, device, positions)
    if isinstance(rule, str):
        rule = rule_named(rule, 4)
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"{op}: rule must be a tensor of codes or one of {', '.join(RULES)}, got {_check.shown(rule)}")
    if rule not in _METHODS[method].rules:
        why = "is no law, so method must be 'token', got" if method == "block" else "is not defined for method"
        raise ValueError(f"{op}: rule {rule!r} {why} {method!r}")
    if rule == "synthetic" and positions is not None:
        alpha = _rates(op, alpha, positions, device)
    if not isinstance(alpha, torch.Tensor):
        _check_numbers(op, rule, alpha)
    if rule == "exact":
        if alpha is not None:
            raise ValueError(f"{op}: rule 'exact' takes no alpha, got a tensor")
        return None, None
    return torch.full((1,), RULES[rule].code, dtype=torch.int64, device=device), _tensor(
        op, alpha, n, device, positions
    )


def _numbers(op, alpha) -> tuple:
    given = () if alpha is None else tuple(alpha) if isinstance(alpha, (tuple, list)) else (alpha,)
    wanted = f"{op}: alpha must be a number, a pair of numbers or a tensor, got"
    for x in given:
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise TypeError(f"{wanted} {_check.shown(x)}" + (" among them" if x is not alpha else ""))
    return given


def _check_numbers(op, rule, alpha):
    given, parameters = _numbers(op, alpha), RULES[rule].parameters
    if len(given) > len(parameters):
        raise ValueError(
            f"{op}: rule {rule!r} takes {len(parameters) or 'no'} alpha, got {', '.join(map(_check.shown, given))}"
        )
    for x, parameter in zip(given, parameters):
        if x not in parameter:
            which = "alpha" if parameter.name == "alpha" else f"alpha's {parameter.name}"
            raise ValueError(f"{op}: {which} of rule {rule!r} must be in {parameter.range}, got {_check.shown(x)}")


def _rates(op, alpha, positions, device):
    """Rates of each position as [n or 1, positions, 1]; what is one rate for all as it came."""
    if isinstance(alpha, torch.Tensor):
        return alpha.unsqueeze(2) if alpha.dim() == 2 and alpha.size(1) == positions else alpha
    if not isinstance(alpha, (tuple, list)):
        return alpha
    rates = _numbers(op, alpha)
    for x in rates:
        _check_numbers(op, "synthetic", x)
    if len(rates) != positions:
        raise ValueError(f"{op}: alpha of rule 'synthetic' must be a rate or {positions} of them, got {len(rates)}")
    return torch.tensor(rates, dtype=torch.float32, device=device).view(1, positions, 1)


def _tensor(op, alpha, n, device, positions):
    if alpha is None:
        return None
    if not isinstance(alpha, torch.Tensor):
        given = _numbers(op, alpha)
        if len(given) not in (1, 2):
            raise ValueError(f"{op}: alpha must be a number, a pair of numbers or a tensor, got {len(given)} numbers")
        for x in given:
            if not abs(x) <= FLT_MAX:
                raise ValueError(f"{op}: alpha must be finite in float32, got {_check.shown(x)}")
        # Filled and not copied: a CUDA graph can hold the call.
        numbers = [torch.full((1,), float(x), dtype=torch.float32, device=device) for x in given]
        return torch.stack(numbers, 1) if len(given) == 2 else numbers[0]
    _check.tensor(op, "alpha", alpha, _check.FLOAT32, device)
    fits = [(), (2,)] + ([] if positions is None else [(positions, 1), (positions, 2)])
    if alpha.dim() == 0 or alpha.size(0) not in (n, 1) or tuple(alpha.shape[1:]) not in fits:
        raise ValueError(
            f"{op}: alpha must be a number, a pair, or have shape [{n}] or [{n}, 2], got {list(alpha.shape)}"
        )
    return alpha

# SPDX-License-Identifier: Apache-2.0
"""Conversion of `rule` and `alpha` to the arguments of the ops."""

from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.registry import (
    CHAIN_METHODS,
    FLT_MAX,
    NOT_GIVEN,
    RULES,
    TREE_METHODS,
    ChainMethod,
    TreeMethod,
    keeps_target,
)
from specdec_kernels.rules import NAMES

# Only "race" is in both, and its rules are the same in both.
_METHODS: dict[str, ChainMethod | TreeMethod] = {**CHAIN_METHODS, **TREE_METHODS}


class RuleArguments(NamedTuple):
    rule: torch.Tensor | None  # [B] or [1] codes
    alpha: torch.Tensor | None  # [B], [1], [B, 2], [1, 2], or with positions in the middle
    numbers: tuple | None  # code, alpha, second alpha, each NOT_GIVEN if missing; None: all are missing

    @property
    def given(self) -> bool:
        return self.rule is not None or self.numbers is not None

    def require_exact(self, op: str, arguments: tuple) -> None:
        """Raise if a rule's output need not follow the target's distribution.

        arguments: those of the op, whose C++ checks rules and alpha in tensors before they are read here."""
        for x in (self.rule, self.alpha):
            if x is not None and x.device.type != "cpu":
                raise ValueError(
                    f"{op}: require_exact looks at rules, so rule and alpha must be a name and numbers or on the CPU, "
                    f"got a tensor on {x.device}"
                )
        if self.rule is not None or self.alpha is not None:
            _call.op(op, space=torch.ops.specdec_check)(*arguments)
        n = max([1, *(x.size(0) for x in (self.rule, self.alpha) if x is not None)])
        for b in range(n) if self.given else ():
            rule, alphas = self._of(b)
            for alpha in alphas:
                if not keeps_target(rule, *alpha):
                    given = f" with alpha {', '.join(f'{x:g}' for x in alpha)}" if alpha else ""
                    at = f" at index {b}" if n > 1 else ""
                    raise ValueError(
                        f"{op}: require_exact needs a rule that keeps the target's law, got {rule!r}{given}{at}"
                    )

    def as_taken(self, device: torch.device) -> RuleArguments:
        """Return the arguments that the op takes. While torch.compile traces, numbers of alpha become a tensor."""
        if self.numbers is None or not _check.is_traced():
            return self
        code, *alphas = self.numbers
        given = tuple(x for x in alphas if x != NOT_GIVEN)
        if not given:
            return self
        alpha = _check.in_graph(given, device).view((1, 2) if len(given) > 1 else (1,))
        return RuleArguments(self.rule, alpha, None if code == NOT_GIVEN else (code, *_NO_ALPHA))

    def _of(self, b: int) -> tuple[str, list]:
        """Return request b's rule and a list of its given parameters, one entry per position if they differ."""
        numbers = self.numbers or (NOT_GIVEN,) * 3
        code = numbers[0] if self.rule is None else self.rule[b % self.rule.size(0)].item()
        rule = NAMES[int(code)]
        if self.alpha is None:
            return rule, [[x for x in numbers[1:] if x != NOT_GIVEN]]
        own = self.alpha[b % self.alpha.size(0)]
        pairs = own.view(-1, own.size(-1)) if own.dim() == 2 else own.view(1, -1)
        count = min(pairs.size(1), len(RULES[rule].parameters))
        return rule, pairs[: None if rule == "synthetic" else 1, :count].tolist()


_EXACT = RuleArguments(None, None, None)


def arguments(op: str, method: str, rule, alpha, device: torch.device, drafts=None) -> RuleArguments:
    """Return a rule's name or codes, and alpha (None, a number, a pair or a tensor), as arguments of the ops.

    drafts: (draft_tokens, max_draft or -1) of a chain, for which alpha of the rule "synthetic" may have a rate for each
    position: a tuple, or a tensor [B, G] or [1, G].
    """
    if alpha is None and isinstance(rule, str) and rule == "exact":
        return _EXACT
    if alpha is not None and not isinstance(alpha, torch.Tensor):
        alpha = _of_python(alpha)
    if isinstance(rule, torch.Tensor):
        alpha, numbers = _alpha(op, alpha)
        return RuleArguments(rule, alpha, (NOT_GIVEN, *numbers) if numbers else None)
    if not isinstance(rule, str) or rule not in RULES:
        raise (ValueError if isinstance(rule, str) else TypeError)(
            f"{op}: rule must be a tensor of codes or one of {', '.join(RULES)}, got {_check.shown(rule)}"
        )
    if rule not in _METHODS[method].rules:
        why = (
            "defines no distribution, so method must be 'token', got"
            if method == "block"
            else "is not defined for method"
        )
        raise ValueError(f"{op}: rule {rule!r} {why} {method!r}")
    if rule == "synthetic" and drafts is not None:
        alpha = _rates(op, alpha, drafts, device)
    if not isinstance(alpha, torch.Tensor):
        _check_numbers(op, rule, alpha)
    if rule == "exact":
        if alpha is not None:
            raise ValueError(f"{op}: rule 'exact' takes no alpha, got a tensor")
        return _EXACT
    alpha, numbers = _alpha(op, alpha)
    return RuleArguments(None, alpha, (float(RULES[rule].code), *(numbers or _NO_ALPHA)))


def _of_python(alpha):
    """Return a number or a tuple of numbers, with numpy's converted."""
    if isinstance(alpha, (tuple, list)):
        return tuple(x if isinstance(x, torch.Tensor) else _check.python_number(x) for x in alpha)
    return _check.python_number(alpha)


def _numbers(op, alpha) -> tuple:
    given = () if alpha is None else alpha if isinstance(alpha, tuple) else (alpha,)
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


def _rates(op, alpha, drafts, device):
    """Return rates for each position as [B or 1, positions, 1]. One rate for all positions is returned unchanged."""
    draft_tokens, positions = drafts
    if positions < 0:
        positions = (1, *_check.tensor(op, "draft_tokens", draft_tokens).shape)[-1]
    if isinstance(alpha, torch.Tensor):
        return alpha.unsqueeze(2) if alpha.dim() == 2 and alpha.size(1) == positions else alpha
    if not isinstance(alpha, tuple):
        return alpha
    rates = _numbers(op, alpha)
    for x in rates:
        _check_numbers(op, "synthetic", x)
    if len(rates) != positions:
        raise ValueError(f"{op}: alpha of rule 'synthetic' must be a rate or {positions} of them, got {len(rates)}")
    return _check.in_graph(rates, device).view(1, positions, 1)


_NO_ALPHA = (NOT_GIVEN,) * 2


def _alpha(op, alpha) -> tuple[torch.Tensor | None, tuple]:
    """Return alpha as a tensor and (), or as None and two numbers; None and () if it is None."""
    if alpha is None or isinstance(alpha, torch.Tensor):
        return alpha, ()
    given = _numbers(op, alpha)
    if len(given) not in (1, 2):
        raise ValueError(f"{op}: alpha must be a number, a pair of numbers or a tensor, got {len(given)} numbers")
    for x in given:
        if not abs(x) <= FLT_MAX:
            raise ValueError(f"{op}: alpha must be finite in float32, got {_check.shown(x)}")
    return None, (*map(float, given), *_NO_ALPHA)[:2]

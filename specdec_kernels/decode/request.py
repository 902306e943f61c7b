# SPDX-License-Identifier: Apache-2.0
"""What goes into the decode loop."""

from dataclasses import dataclass

import torch

from ..ops import _check, _rules
from ..registry import RULES, SAMPLING, rule_named

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it. The filters are off at top_k 0, top_p 1, min_p 0; temperature 0 is greedy.

    rule, alpha: how drafts are accepted, by the names of registry.RULES; "exact" keeps the target's law.
    """

    prompt: list[int]  # token ids, at least one
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    eos: tuple[int, ...] = ()  # any of these ids ends the request; it is the last token of the result
    stop: tuple[str, ...] = ()  # any of these strings ends the request (needs a tokenizer); the text ends before it
    rule: str = "exact"
    alpha: float | tuple[float, float] | None = None  # the rule's parameters, None for its defaults

    def __post_init__(self):
        object.__setattr__(self, "prompt", [int(t) for t in self.prompt])
        if not self.prompt:
            raise ValueError("Request: prompt must have at least one token, got none")
        if self.max_new_tokens < 1:
            raise ValueError(f"Request: max_new_tokens must be >= 1, got {self.max_new_tokens}")
        _check.sampling("Request", "", tuple(getattr(self, name) for name in SAMPLING), 1, torch.device("cpu"))
        object.__setattr__(self, "rule", rule_named(self.rule, 4))
        if self.rule not in RULES:
            raise ValueError(f"Request: rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        _rules.arguments("Request", "token", self.rule, self.alpha, 1, torch.device("cpu"))

# SPDX-License-Identifier: Apache-2.0
"""What goes into the decode loop."""

import math
from dataclasses import dataclass

import torch

from ..ops import _rules
from ..registry import RULES, rule_named

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
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"Request: temperature must be a finite number >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"Request: top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"Request: min_p must lie in [0, 1], got {self.min_p}")
        if self.top_k < -1:
            raise ValueError(f"Request: top_k must be >= -1, got {self.top_k}")
        object.__setattr__(self, "rule", rule_named(self.rule, 4))
        if self.rule not in RULES:
            raise ValueError(f"Request: rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        _rules.arguments("Request", "token", self.rule, self.alpha, 1, torch.device("cpu"))

# SPDX-License-Identifier: Apache-2.0
"""What goes into the decode loop (Request) and what comes out (Event, Result, Stats)."""

import math
from collections import Counter
from dataclasses import dataclass, field

import torch

from ..ops import _rules
from ..rules import TABLE

__all__ = ["Event", "Request", "Result", "Stats"]


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it. The filters are off at top_k 0, top_p 1, min_p 0; temperature 0 is greedy.

    rule, alpha: how drafts are accepted, by the names of specdec_kernels.rules.TABLE; "exact" keeps the target's law.
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
        if self.rule not in TABLE:
            raise ValueError(f"Request: rule must be one of {', '.join(TABLE)}, got {self.rule!r}")
        _rules.arguments("Request", "token", self.rule, self.alpha, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Event:
    """New tokens of one request. `text` is "" without a tokenizer; `finished` is None, "eos", "length" or "stop"."""

    index: int  # of the request in the list given to the loop
    tokens: list[int]
    text: str = ""
    finished: str | None = None


@dataclass
class Stats:
    """Counts and seconds, of one request or of all. The requests of a step share its seconds equally."""

    new_tokens: int = 0
    target_calls: float = (
        0  # for one request: the steps that needed the target for it; in total: forward passes of the target
    )
    rows: int = 0  # the target calls of the requests, summed
    drafted: int = 0  # draft tokens offered
    tested: int = 0  # levels of the drafts that verification looked at: the accepted ones and the first rejected one
    accepted: int = 0
    widths: Counter = field(
        default_factory=Counter
    )  # drafts by their number of tokens, a step without one counted as 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0  # the whole, prefill and bookkeeping included
    status: int = 0  # the status bits of verify_chain or verify_tree, or-ed

    @property
    def alpha(self) -> float:
        """Chance that a tested draft token, of a tree one of a node's children, is accepted: the alpha of theory.py."""
        return self.accepted / self.tested if self.tested else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted draft tokens over all drafted ones, those behind a rejection included."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accepted_length(self) -> float:
        """Accepted draft tokens per step of a request."""
        return self.accepted / self.rows if self.rows else 0.0

    @property
    def nodes_per_call(self) -> float:
        """Tokens of a request that a forward pass of the target scores: the last committed one and the drafted ones."""
        return 1 + self.drafted / self.rows if self.rows else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Tokens a request gains by one forward pass of the target; 1 in plain decoding."""
        return self.new_tokens / self.rows if self.rows else 0.0

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.prefill_seconds

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the seconds after the prompts were read."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass
class Result:
    """The continuation of one request."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: str | None = None
    stats: Stats = field(default_factory=Stats)

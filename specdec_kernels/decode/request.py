# SPDX-License-Identifier: Apache-2.0
"""Request: a prompt with its parameters, the input of the decode loop."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch

from ..ops import _rules
from ..registry import INF, PENALTIES
from .request_checks import CHECKS

__all__ = ["Request"]

_VIEWS = (*PENALTIES, "logit_bias", "min_tokens", "bad_words", "allowed")


@dataclass(frozen=True)
class Request:
    """One prompt and how to continue it.

    Temperature 0 is greedy. The filters are off at top_k 0, top_p 1, min_p 0 and top_n_sigma 0.

    Penalties are off at repetition 1, frequency 0, presence 0; sk.Penalties has their definitions. They count the
    output so far, and repetition also the prompt. Draft tokens are verified under the penalties of their positions, so
    under the rule "exact" the output is distributed as in plain decoding with the same penalties. The same holds for
    logit_bias, min_tokens, bad_words and allowed.

    Every field is checked when a request is made and again when it is submitted. Numbers may be numpy's or torch's.

    rule, alpha: the rule by which drafts are accepted (a name in registry.RULES) and its parameters. "exact" keeps the
    target's distribution.

    Raises:
        TypeError, ValueError: a field has a wrong type or value. The text names it, what was wanted and what came.
    """

    prompt: list[int]  # token ids, at least one; a tensor or an array [T] is accepted too
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    seed: int = 0  # any int; its low 64 bits count
    eos: tuple[int, ...] = ()  # any of these ids ends the request; it is the last token of the result
    stop: tuple[str, ...] = ()  # any of these strings ends the request (needs a tokenizer); the text ends before it
    rule: str = "exact"
    alpha: float | tuple[float, float] | None = None  # the rule's parameters, None for its defaults
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None  # {id: number added to its logit}; -inf forbids the id
    min_tokens: int = 0  # before this many tokens ids of `eos` are forbidden; a stop string may still end the request
    # Sequences of ids. The last id of a sequence is forbidden where the output ends with the ids before it. The prompt
    # does not count, as in vLLM. A sequence of one id is forbidden everywhere.
    bad_words: tuple[tuple[int, ...], ...] = ()
    # A function: output so far (a list of ids) -> a bit mask of the ids that may follow (int32 words as in sk.Allowed),
    # or None for all ids. It is called for each position of a draft, with the draft tokens before it as the end of the
    # output, until it forbids one of them.
    allowed: Callable[[list[int]], Any] | None = None
    # How many of the most likely ids to report at each position, beside the logprob and the rank of the token there.
    # None: no report.
    logprobs: int | None = None
    # The distribution that logprobs refer to. "raw": the target's own. "processed": the target's after penalties,
    # biases, masks, temperature and filters.
    logprobs_mode: str = "raw"

    def __post_init__(self):
        for field in fields(self):
            object.__setattr__(self, field.name, CHECKS[field.name](field.name, getattr(self, field.name)))
        if self.min_tokens > self.max_new_tokens:
            wanted = f"<= max_new_tokens={self.max_new_tokens}"
            raise ValueError(f"Request: min_tokens must be {wanted}, got {self.min_tokens}")
        _rules.arguments("Request", "token", self.rule, self.alpha, torch.device("cpu"))

    @property
    def views(self) -> dict[str, Any]:
        """The penalties, biases and masks that are on, with their values. They change logits before sampling."""
        given = {x.name: (getattr(self, x.name), x.default) for x in fields(self) if x.name in _VIEWS}
        return {name: value for name, (value, off) in given.items() if value != off}

    @property
    def forbids(self) -> str | None:
        """The name of a field that forbids ids; None if none does."""
        if self.allowed is not None:
            return "allowed"
        if self.logit_bias is not None and -INF in self.logit_bias.values():
            return "logit_bias"
        if self.bad_words:
            return "bad_words"
        return "min_tokens" if self.min_tokens and self.eos else None

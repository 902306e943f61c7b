# SPDX-License-Identifier: Apache-2.0
"""Requests that are being decoded: one (Sequence), and those of a step as the ops take them (Batch)."""

import logging
from functools import cached_property

import torch

from ..registry import RULES
from .request import Request
from .result import Event, Result, reason
from .text import TextStream
from .transfers import CPU, Readback, upload

__all__ = ["Batch", "Sequence"]

_log = logging.getLogger(__name__)


class Sequence:
    """One request: its tokens so far (prompt included) and its result.

    Between steps the target's cache holds the keys of tokens[:-1]; the next step feeds tokens[-1] and the draft after
    it.
    """

    def __init__(self, index: int, request: Request, tokenizer=None):
        if request.stop and tokenizer is None:
            raise ValueError(f"generate: stop strings need a tokenizer (request {index})")
        self.index, self.request, self.result = index, request, Result()
        self.tokens = list(request.prompt)
        self.stream = None if tokenizer is None else TextStream(tokenizer, request.stop)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - len(self.result.tokens)

    @property
    def settled(self) -> int:
        """How many of its tokens will stay: all."""
        return len(self.tokens)

    def extend(self, tokens: list[int], error: str | None = None) -> Event:
        """Take over the tokens of a step, up to the first that ends the request. error: why no token follows them."""
        taken, text, finished = [], "", None
        for token in tokens[: self.remaining]:
            taken.append(token)
            stopped = False
            if self.stream is not None:
                try:
                    piece, stopped = self.stream.push(token)
                except Exception as failure:
                    finished, error = "error", reason("tokenizer", failure)
                    break
                text += piece
            if stopped or token in self.request.eos:
                finished = "stop" if stopped else "eos"
                break
        self.tokens += taken
        self.result.tokens += taken
        self.result.stats.new_tokens += len(taken)
        if finished is None and self.remaining == 0:
            finished = "length"
        elif finished is None and error is not None:
            finished = "error"
        return self._event(taken, text, finished, error if finished == "error" else None)

    def cancel(self) -> Event:
        """End it with the tokens it has."""
        return self._event([], "", "cancelled")

    def fail(self, place: str, failure: Exception) -> Event:
        """End it by an error, with the tokens it has."""
        return self._event([], "", "error", reason(place, failure))

    def _event(self, taken: list[int], text: str, finished: str | None, error: str | None = None) -> Event:
        """The event of a step; what was held back of the text comes with the last."""
        if finished not in (None, "stop") and self.stream is not None:
            try:
                text += self.stream.flush()
            except Exception as failure:
                finished, error = "error", error or reason("tokenizer", failure)
        if error is not None:
            _log.warning("Request %d ended after %d tokens: %s", self.index, len(self.result.tokens), error)
        self.result.text += text
        self.result.finished, self.result.error = finished, error
        return Event(self.index, taken, text, finished, error)


class Batch(list):
    """The sequences of a step, in slot order; what they ask of the sampling ops is gathered once per composition, on
    the device of the target."""

    depth = 0  # of the target's steps; those of a model that drafts by steps of its own lie below

    def __init__(self, sequences=(), device: torch.device = CPU, first: int = 0):
        super().__init__(sequences)
        self.device, self.first, self.readback = device, first, Readback()

    @property
    def slots(self) -> slice:
        """Those that its sequences lie in: first, first + 1, ..."""
        return slice(self.first, self.first + len(self))

    def halves(self) -> "list[Batch]":
        middle = len(self) // 2
        return [Batch(self[:middle], self.device, self.first), Batch(self[middle:], self.device, self.first + middle)]

    @cached_property
    def sampling(self) -> dict:
        """Temperature and filters [n] as fields of sk.Rows; filters that nobody uses are None."""

        def gather(name, off, dtype):
            values = [getattr(s.request, name) for s in self]
            return None if all(v == off for v in values) else upload(values, self.device, dtype)

        return dict(
            temperature=upload([s.request.temperature for s in self], self.device, torch.float32),
            top_k=gather("top_k", 0, torch.int64),
            top_p=gather("top_p", 1.0, torch.float32),
            min_p=gather("min_p", 0.0, torch.float32),
        )

    @cached_property
    def seeds(self) -> torch.Tensor:
        return upload([s.request.seed for s in self], self.device)

    @property
    def offset(self) -> torch.Tensor:
        """[n] of the random numbers of a step: the number of tokens each sequence has."""
        return upload([len(s.tokens) for s in self], self.device)

    @property
    def randomness(self) -> dict:
        """seed and offset [n] of this step, as the ops that draw take them."""
        return dict(seed=self.seeds, offset=self.offset)

    @cached_property
    def rules(self) -> dict:
        """rule and alpha as sk.verify_chain takes them; nothing where all are exact."""
        requests = [s.request for s in self]
        if all(r.rule == "exact" for r in requests):
            return {}
        alpha = [_alpha_of(RULES[r.rule].parameters, r.alpha) for r in requests]
        codes = upload([RULES[r.rule].code for r in requests], self.device)
        return dict(rule=codes, alpha=upload(alpha, self.device, torch.float32))

    @cached_property
    def wants_end_row(self) -> bool:
        """Whether a rule puts a law pi in place of p, which the token behind the last draft should have too."""
        return any(s.request.rule != "exact" and RULES[s.request.rule].defines_distribution for s in self)


def _alpha_of(parameters, alpha) -> list[float]:
    """alpha with its defaults; what a rule has no use for is 0."""
    given = [] if alpha is None else list(alpha) if isinstance(alpha, (tuple, list)) else [alpha]
    return [*given, *[p.default for p in parameters[len(given) :]], 0.0, 0.0][:2]

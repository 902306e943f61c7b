# SPDX-License-Identifier: Apache-2.0
"""Requests that are being decoded: a single one (Sequence), and those of a step with the ops' arguments (Batch)."""

import logging
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch

from ..registry import RULES
from .request import Request
from .request_checks import LOGPROBS_MODES
from .result import Event, Logprobs, Result, reason
from .text import TextStream
from .transfers import CPU, Readback, upload
from .views import History, Views

__all__ = ["Batch", "Sequence"]

_log = logging.getLogger(__name__)


class Sequence:
    """One request: its tokens so far (prompt included) and its result.

    Between steps the target's cache holds the keys of tokens[:-1]. The next step feeds tokens[-1] and the draft.
    """

    def __init__(self, index: int, request: Request, tokenizer=None):
        self.index, self.request = index, request
        self.result = Result(logprobs=None if request.logprobs is None else [])
        self.tokens = list(request.prompt)
        self.stream = None if tokenizer is None else TextStream(tokenizer, request.stop)

    @property
    def remaining(self) -> int:
        return self.request.max_new_tokens - len(self.result.tokens)

    @cached_property
    def history(self) -> History:
        """The tokens that penalties count."""
        return History(self.request.prompt)

    @property
    def num_final(self) -> int:
        """Number of tokens that cannot be rejected any more: all. A subclass that runs ahead has fewer."""
        return len(self.tokens)

    def extend(
        self, tokens: list[int], error: str | None = None, accepted: int = 0, logprobs: list[Logprobs] | None = None
    ) -> Event:
        """Append the tokens of a step, up to the first that ends the request.

        error: why no token follows them, if none can. accepted: the first `accepted` of them are draft tokens.
        logprobs: a report for each of them.
        """
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
        drafted = [i < accepted for i in range(len(taken))]
        self.tokens += taken
        self.result.tokens += taken
        self.result.drafted += drafted
        if logprobs is not None:
            logprobs = logprobs[: len(taken)]
            self.result.logprobs = [*(self.result.logprobs or ()), *logprobs]
        self.result.stats.new_tokens += len(taken)
        if finished is None and self.remaining == 0:
            finished = "length"
        elif finished is None and error is not None:
            finished = "error"
        event = self._event(taken, text, finished, error if finished == "error" else None)
        return replace(event, drafted=drafted, logprobs=logprobs)

    def cancel(self) -> Event:
        """End the request with the tokens it has."""
        return self._event([], "", "cancelled")

    def fail(self, place: str, failure: Exception) -> Event:
        """End the request by an error, with the tokens it has."""
        return self._event([], "", "error", reason(place, failure))

    def _event(self, taken: list[int], text: str, finished: str | None, error: str | None = None) -> Event:
        """Return the event of a step. The last event also has the held-back text, unless a stop string ended it."""
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


class Reporting(NamedTuple):
    """The requests of a batch that want logprobs of one mode."""

    raw: bool  # whether the mode is "raw": the model's own distribution
    members: list[int]  # their places in the batch
    at: torch.Tensor  # `members` on the device
    batch: "Batch"  # these requests alone, with the read-back of the whole batch


class Batch(list):
    """The sequences of a step, in slot order, with the arguments of the sampling ops on the target's device.

    Arguments that do not change from step to step are gathered once and reused while the same requests are decoded.

    race: whether tokens are verified by the race; drafts are then drawn with its noise too.
    """

    depth = 0  # 0: the target's steps; 1: the inner steps of a draft model that is itself speculative; and so on

    def __init__(self, sequences=(), device: torch.device = CPU, first: int = 0, race: bool = False):
        super().__init__(sequences)
        self.device, self.first, self.race, self.readback = device, first, race, Readback()
        # The sequences' lengths when `offset` was uploaded, and the uploaded tensor.
        self._known = ([-1], torch.empty(0, dtype=torch.int64, device=CPU))

    @property
    def slots(self) -> slice:
        """The slots of the sequences: first, first + 1, ..."""
        return slice(self.first, self.first + len(self))

    def of(self, sequences, first: int = 0) -> "Batch":
        """Return a batch of other sequences, from slot `first` on."""
        return Batch(sequences, self.device, first, self.race)

    def halves(self) -> "list[Batch]":
        middle = len(self) // 2
        return [self.of(self[:middle], self.first), self.of(self[middle:], self.first + middle)]

    @cached_property
    def sampling(self) -> dict:
        """Temperature and filters [n] as fields of sk.Rows; a filter that no request uses is None."""
        return dict(
            temperature=upload([s.request.temperature for s in self], self.device, torch.float32),
            top_k=self.gather("top_k", 0, torch.int64),
            top_p=self.gather("top_p", 1.0),
            min_p=self.gather("min_p", 0.0),
            top_n_sigma=self.gather("top_n_sigma", 0.0),
        )

    def gather(self, name: str, off: float, dtype: torch.dtype = torch.float32) -> torch.Tensor | None:
        """Return a field of all requests, [n]; None if it is off in all of them."""
        values = [getattr(s.request, name) for s in self]
        return None if all(v == off for v in values) else upload(values, self.device, dtype)

    @cached_property
    def views(self) -> Views:
        """The requests' penalties, biases and masks, as fields of sk.Rows."""
        return Views(self)

    @cached_property
    def seeds(self) -> torch.Tensor:
        return upload([s.request.seed for s in self], self.device)

    @property
    def offset(self) -> torch.Tensor:
        """The random offset [n] of a step: the number of tokens of each sequence, prompt included.

        It is also the position of the first token that the step emits, which indexes the noise of a race.
        """
        lengths = [len(s.tokens) for s in self]
        if lengths != self._known[0]:
            self._known = lengths, upload(lengths, self.device)
        return self._known[1]

    @property
    def randomness(self) -> dict:
        """seed and offset [n] of this step, as the ops that draw take them."""
        return dict(seed=self.seeds, offset=self.offset)

    def draws(self, depth: int, slot: int | torch.Tensor, width: int = 1) -> dict:
        """Return sk.sample's random-number arguments for drafts after `depth` others, for rows [n * width].

        slot: sk.sample's `slot`, the index of the first draw's random number. A race has none: the token id takes
        its place.
        """
        given = {name: x.repeat_interleave(width) for name, x in self.randomness.items()}
        return dict(race=True, **given | {"offset": given["offset"] + depth}) if self.race else given | {"slot": slot}

    @cached_property
    def rules(self) -> dict:
        """rule and alpha as sk.verify_chain takes them; empty if all are exact."""
        requests = [s.request for s in self]
        if all(r.rule == "exact" for r in requests):
            return {}
        alpha = [_alpha_of(RULES[r.rule].parameters, r.alpha) for r in requests]
        codes = upload([RULES[r.rule].code for r in requests], self.device)
        return dict(rule=codes, alpha=upload(alpha, self.device, torch.float32))

    @cached_property
    def reporting(self) -> list[Reporting]:
        """The requests that want logprobs, by `logprobs_mode`."""
        found = []
        for mode in LOGPROBS_MODES:
            members = [
                i for i, s in enumerate(self) if s.request.logprobs is not None and s.request.logprobs_mode == mode
            ]
            if members:
                part = self if len(members) == len(self) else self.of(self[i] for i in members)
                part.readback = self.readback
                found.append(Reporting(mode == "raw", members, upload(members, self.device), part))
        return found

    @cached_property
    def wants_end_row(self) -> bool:
        """Whether a request's rule replaces the target's distribution p by another, pi.

        The token after the last draft must then be drawn from pi too, so the draft needs one more row.
        """
        return any(s.request.rule != "exact" and RULES[s.request.rule].defines_distribution for s in self)


def _alpha_of(parameters, alpha) -> list[float]:
    """Return alpha as two numbers, with defaults filled in; a parameter that the rule does not have is 0."""
    given = [] if alpha is None else list(alpha) if isinstance(alpha, (tuple, list)) else [alpha]
    return [*given, *[p.default for p in parameters[len(given) :]], 0.0, 0.0][:2]

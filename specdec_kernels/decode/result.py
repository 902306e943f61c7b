# SPDX-License-Identifier: Apache-2.0
"""The output of the decode loop: tokens as they arrive (Event), results, counts and seconds (Stats)."""

import logging
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import NamedTuple

__all__ = ["Event", "Logprobs", "Output", "Result", "Stats", "reason"]

_log = logging.getLogger(__name__)


class Logprobs(NamedTuple):
    """The report of `Request.logprobs` on one token."""

    logprob: float  # the token's
    rank: int  # the number of ids whose logit is at least the token's, itself included: 1 is the best
    top: tuple[tuple[int, float], ...]  # the most likely ids at its position with their logprobs, best first


@dataclass(frozen=True)
class Event:
    """New tokens of one request in one step.

    `text` is "" without a tokenizer. `finished` is None, "eos", "length", "stop", "cancelled" or "error". `error` is
    the reason for "error". `drafted` and `logprobs` have an entry for each token.
    """

    index: int  # index of the request: in the list given to the loop, or as returned by Session.submit
    tokens: list[int]
    text: str = ""
    finished: str | None = None
    error: str | None = None
    drafted: list[bool] = field(default_factory=list)  # whether each token is an accepted draft token
    logprobs: list[Logprobs] | None = None  # None: the request wants none


@dataclass
class Stats:
    """Counts and seconds, of one request or of all. A step's seconds are shared equally by its requests."""

    new_tokens: int = 0
    # One request: steps in which it needed the target. All requests: forward passes of the target.
    target_calls: float = 0
    rows: int = 0  # target calls summed over requests
    drafted: int = 0  # draft tokens proposed
    tested: int = 0  # tested levels of drafts, up to the end of the text: the accepted ones and the first rejected one
    accepted: int = 0  # accepted draft tokens that were emitted: a text may end inside a draft
    widths: Counter = field(default_factory=Counter)  # {number of draft tokens: steps of a request that had as many}
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0  # total, including prefill and bookkeeping
    status: int = 0  # the status bits of verify_chain or verify_tree, or-ed

    def count(self, drafted: int, tested: int, accepted: int, status: int, needed_target: bool) -> None:
        """Count one step of one request."""
        self.rows += needed_target
        self.drafted += drafted
        self.widths[drafted] += 1
        self.tested += tested
        self.accepted += accepted
        self.status |= status

    def __add__(self, other: "Stats") -> "Stats":
        """Return the sum of both; the status bits are or-ed."""
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "status"}
        return Stats(**both, status=self.status | other.status)

    def spend(self, draft: float, target: float, verify: float) -> None:
        """Add the seconds of a step, or a request's share of them."""
        self.draft_seconds += draft
        self.target_seconds += target
        self.verify_seconds += verify

    @property
    def alpha(self) -> float:
        """Share of tested levels that were accepted (alpha in theory). In a tree a level has several drafts."""
        return self.accepted / self.tested if self.tested else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted over all drafted tokens, including those after a rejection."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def accepted_length(self) -> float:
        """Accepted draft tokens of a request per forward pass of the target."""
        return self.accepted / self.rows if self.rows else 0.0

    @property
    def nodes_per_call(self) -> float:
        """Tokens of a request scored per forward pass of the target: the last committed one and the drafted ones."""
        return 1 + self.drafted / self.rows if self.rows else 0.0

    @property
    def tokens_per_call(self) -> float:
        """New tokens of a request per forward pass of the target; 1 in plain decoding."""
        return self.new_tokens / self.rows if self.rows else 0.0

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.prefill_seconds

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second, without the seconds in which prompts were read."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


def reason(place: str, failure: Exception) -> str:
    """Return the text of an exception. The exception itself is not stored: it would keep its step's tensors alive."""
    _log.debug("The %s of a request failed", place, exc_info=failure)
    return f"{place}: {type(failure).__name__}: {failure}"


@dataclass
class Result:
    """The continuation of one request. After an error it has the tokens before the error.

    `finished`, `error`, `drafted` and `logprobs` are as in Event.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: str | None = None
    error: str | None = None
    drafted: list[bool] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    stats: Stats = field(default_factory=Stats)

    def cut(self, n: int) -> None:
        """Keep the first n tokens with their `drafted` and `logprobs`. The text and the counts of steps stay."""
        for kept in (self.tokens, self.drafted, self.logprobs or []):
            del kept[n:]
        self.stats.new_tokens = min(self.stats.new_tokens, n)


@dataclass
class Output:
    """Results in the order of the requests, and statistics over all."""

    results: list[Result] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def check(self) -> "Output":
        """Return itself if no request failed, for callers that want all results or none.

        Raises:
            RuntimeError: a request ended by an error.
        """
        for i, result in enumerate(self.results):
            if result.error is not None:
                after = f"request {i} ended by an error after {len(result.tokens)} tokens"
                raise RuntimeError(f"Output.check: {after}: {result.error}")
        return self

# SPDX-License-Identifier: Apache-2.0
"""What comes out of the decode loop: tokens as they arrive (Event), results, counts and seconds (Stats)."""

import logging
from collections import Counter
from dataclasses import dataclass, field, fields

__all__ = ["Event", "Output", "Result", "Stats", "reason"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """New tokens of one request. `text` is "" without a tokenizer; `finished` is None, "eos", "length", "stop",
    "cancelled" or "error", whose reason is `error`."""

    index: int  # of the request in the list given to the loop, or as Session.submit said
    tokens: list[int]
    text: str = ""
    finished: str | None = None
    error: str | None = None


@dataclass
class Stats:
    """Counts and seconds, of one request or of all. The requests of a step share its seconds equally."""

    new_tokens: int = 0
    # of one request: the steps that needed the target for it; in total: forward passes of the target
    target_calls: float = 0
    rows: int = 0  # the target calls of the requests, summed
    drafted: int = 0  # draft tokens offered
    tested: int = 0  # levels of the drafts that verification looked at, up to the end of the text: the accepted ones
    # and the first rejected one
    accepted: int = 0  # of those that were emitted: a text may end inside a draft
    widths: Counter = field(default_factory=Counter)  # drafts by their number of tokens, 0: a step without one
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    seconds: float = 0.0  # the whole, prefill and bookkeeping included
    status: int = 0  # the status bits of verify_chain or verify_tree, or-ed

    def count(self, drafted: int, tested: int, accepted: int, status: int, needed_target: bool) -> None:
        """One step of one request."""
        self.rows += needed_target
        self.drafted += drafted
        self.widths[drafted] += 1
        self.tested += tested
        self.accepted += accepted
        self.status |= status

    def __add__(self, other: "Stats") -> "Stats":
        """Of both; the status bits or-ed."""
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "status"}
        return Stats(**both, status=self.status | other.status)

    def spend(self, draft: float, target: float, verify: float) -> None:
        """The seconds of a step, or a request's share of them."""
        self.draft_seconds += draft
        self.target_seconds += target
        self.verify_seconds += verify

    @property
    def alpha(self) -> float:
        """Chance that a tested draft token, of a tree one of a node's children, is accepted: theory's alpha."""
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


def reason(place: str, failure: Exception) -> str:
    """What a result says of an exception, which itself would hold on to the tensors of its step."""
    _log.debug("The %s of a request failed", place, exc_info=failure)
    return f"{place}: {type(failure).__name__}: {failure}"


@dataclass
class Result:
    """The continuation of one request. One that ended by an error has the tokens that came before it."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finished: str | None = None  # as in Event
    error: str | None = None
    stats: Stats = field(default_factory=Stats)


@dataclass
class Output:
    """Results in the order of the requests, and the statistics of the whole."""

    results: list[Result] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def check(self) -> "Output":
        """Return itself, for callers that want all results or none.

        Raises:
            RuntimeError: a request ended by an error.
        """
        for i, result in enumerate(self.results):
            if result.error is not None:
                after = f"request {i} ended by an error after {len(result.tokens)} tokens"
                raise RuntimeError(f"generate: {after}: {result.error}")
        return self

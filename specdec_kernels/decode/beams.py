# SPDX-License-Identifier: Apache-2.0
"""Beam search, plain and speculative. Both take the same steps; with a drafter one target pass serves several steps.

One step is plain beam search: the one-token continuations of all live beams compete with each other and with the
finished beams. The best stay, ordered by (score descending, beam ascending, token ascending). A step needs the
target's row of logits after every live beam. One target pass computes those rows. With a drafter it also computes the
rows after every node of a tree of likely continuations. Steps are then taken as long as every live beam has its row.
Nothing is random, and a row depends on its own path alone. So the beams equal those of plain beam search for every
proposal.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from time import perf_counter
from typing import NamedTuple, Protocol, runtime_checkable

import torch

import specdec_kernels as sk

from .interfaces import check_count, check_no_views, check_requests, check_target, wrap
from .limits import check_size
from .models.token_tree import Path, TokenTree, check_trees
from .request import Request
from .result import Stats, reason
from .sequence import Sequence
from .transfers import upload

__all__ = ["Beam", "BeamOutput", "beam_search", "best", "extensions"]


class Beam(NamedTuple):
    """A continuation. Its score is the sum of its tokens' logprobs, rounded to float32 at every step."""

    tokens: Path = ()
    score: float = 0.0
    finished: str | None = None  # "eos", "length", "error"; None: live


@dataclass
class BeamOutput:
    """The beams of each request, best first, and statistics over all requests.

    In `stats` a step counts as one new token, a step on a tree's rows as one accepted draft, a tree's node as drafted.
    A search that fails returns the beams of its last step, with live beams marked "error" and the reason in `errors`.
    """

    results: list[list[Beam]] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)  # of each request; None: it was searched
    stats: Stats = field(default_factory=Stats)


@runtime_checkable
class BeamProposer(Protocol):
    """The interface of a drafter for beam search (drafters/beam_drafter.py)."""

    num_lookahead: int  # the most nodes of a proposal

    def begin(self, prompt: list[int], room: int) -> None:
        """Start a request. room: the most tokens of its beams that may be cached at once."""

    def propose(self, live: dict[Path, float], depth: int, allowed: Callable[[int], bool]) -> Iterable[Path]:
        """Return paths that the live beams may take in the next `depth` steps.

        live: the beams with their scores. A path comes before its own continuations, and no path ends in a token that
        is not allowed.
        """


class Extension(NamedTuple):
    score: float
    beam: int
    token: int

    @property
    def rank(self):
        return -self.score, self.beam, self.token


def extensions(rows: list[torch.Tensor], beams: list[tuple[int, float]], width: int) -> list[Extension]:
    """Return the `width` best one-token continuations of each beam.

    beams: (index, score) of each beam. rows: the logits [V] after each. Continuations with score -inf or NaN are left
    out.
    """
    logits = torch.stack(rows)
    logits = logits.float() if logits.dtype == torch.float64 else logits
    score = upload([score for _, score in beams], logits.device, torch.float32)
    best_of = sk.row_topw(logits, score, min(width, logits.shape[1]))
    return [
        Extension(score, beam, token)
        for (beam, _), scores, ids in zip(beams, best_of.scores.tolist(), best_of.ids.tolist())
        for score, token in zip(scores, ids)
        if score > -math.inf
    ]


def best(candidates: Iterable[Extension], width: int) -> list[Extension]:
    return nsmallest(width, candidates, key=lambda candidate: candidate.rank)


def beam_search(target, requests: list[Request], beams: int = 4, drafter: BeamProposer | None = None) -> BeamOutput:
    """Find the best continuations of each request by beam search, one request after the other.

    A beam finishes with a token of the request's `eos` or at `max_new_tokens`, and the search ends when all beams have
    finished. A finished beam keeps its score and competes with the others. Scores are sums of logprobs at temperature
    1, not divided by length. A live beam's score therefore never rises, so a finished beam can be kept and compared
    later.

    With a drafter the beams, scores, order and flags are the same, up to rounding: the target may round a row
    differently in a tree than in a pass of its own. Two beams whose scores differ by less than that may swap.

    The live beams are branches of one tree in one slot of the target's cache (models/token_tree.py). Shared prefixes
    are cached once, and no slot is copied when beams are reordered.

    Args:
        target: a Model (models/adapters.py).
        requests: prompts and their end conditions; nothing is drawn, so temperature must be 0 and rule "exact".
        beams: the number of beams that are kept, W.
        drafter: a BeamDrafter; None: plain beam search, one target call per step.

    Returns:
        BeamOutput: up to W beams of each request (fewer if fewer tokens have a probability), best first. A request
        ends with an error if its search raises, or if a live beam's row holds NaN, +inf or nothing finite. The others
        are still searched.

    Raises:
        TypeError, ValueError: fewer than one beam, no request, a request that beam search or the target cannot serve.

    Example:
        >>> drafter = BeamDrafter(pair.draft, width=8, depth=4)
        >>> out = beam_search(pair.target, [Request(pair.tokenizer.encode("def"), eos=pair.eos)], 4, drafter)
        >>> pair.tokenizer.decode(out.results[0][0].tokens), out.stats.tokens_per_call

    Source: plain beam search. Speculation gives equal beams, by induction over steps: a step reads nothing but rows.
    """
    check_target("beam_search", target)
    beams, requests = check_count("beam_search", "beams", beams), check_requests("beam_search", requests)
    if drafter is not None and (not isinstance(drafter, BeamProposer) or hasattr(drafter, "verifies")):
        hint = wrap(drafter, "BeamDrafter")
        raise TypeError(f"beam_search: drafter must be a decode.BeamDrafter, got {type(drafter).__name__}{hint}")
    for model in (target, getattr(drafter, "model", None)):
        check_trees(model)
    for i, request in enumerate(requests):
        _check(target, i, request)
    output = BeamOutput()
    for request in requests:
        search = _Search(request, beams, drafter, output.stats)
        try:
            search.run(target)
        except Exception as failure:
            output.errors.append(reason("search", failure))
            search.beams = [beam if beam.finished else beam._replace(finished="error") for beam in search.beams]
        else:
            output.errors.append(None)
        output.results.append(search.beams)
    return output


def _check(target, index: int, request: Request) -> None:
    for name, wanted in (("temperature", 0.0), ("rule", "exact"), ("stop", ()), ("logprobs", None)):
        value = getattr(request, name)
        if value != wanted:
            raise ValueError(f"beam_search: {name} must be {wanted!r}, request {index} has {value!r}")
    check_no_views("beam_search", index, request)
    check_size("beam_search", target, target.max_positions, Sequence(index, request))


class _Search:
    """The beam search of one request."""

    def __init__(self, request: Request, width: int, drafter: BeamProposer | None, stats: Stats):
        self.request, self.width, self.drafter, self.stats = request, width, drafter, stats
        self.root = (request.prompt[-1],)
        self.beams = [Beam()]

    def run(self, target) -> None:
        """Take steps until no beam is live."""
        began = perf_counter()
        self._read_prompt(target)
        self.stats.prefill_seconds += perf_counter() - began
        while live := self._live():
            self._round(live)
        self.stats.seconds += perf_counter() - began

    def _read_prompt(self, target) -> None:
        prompt, room = self.request.prompt, self.width * (self.request.max_new_tokens + 1)
        self.tree = TokenTree(target, prompt, room + (self.drafter.num_lookahead if self.drafter else 0))
        if self.drafter is not None:
            self.drafter.begin(prompt, room)

    def _live(self) -> dict[Path, float]:
        return {self.root + beam.tokens: beam.score for beam in self.beams if beam.finished is None}

    def _round(self, live: dict[Path, float]) -> None:
        """Make one target call, and take all steps (at least one) that its rows suffice for."""
        times = [perf_counter()]
        length = len(next(iter(live)))
        rest = self.request.max_new_tokens - length  # steps after the next one
        proposed: list[Path] = []
        if self.drafter is not None and rest > 0:
            proposed = [*self.drafter.propose(live, rest, self._goes_on)]
        times.append(perf_counter())
        rows = self.tree.feed([*live, *proposed])
        times.append(perf_counter())
        steps = 0
        while live and live.keys() <= rows.keys():
            self.beams = self._step(rows)
            live, steps = self._live(), steps + 1
        if live:
            self.tree.keep([*live])
        levels = len(proposed[-1]) - length if proposed else 0
        self.stats.count(len(proposed), min(steps, levels) if live else steps - 1, steps - 1, 0, True)
        self.stats.new_tokens += steps
        self.stats.target_calls += 1
        self.stats.spend(*(b - a for a, b in zip(times, [*times[1:], perf_counter()])))

    def _goes_on(self, token: int) -> bool:
        """Return whether a beam continues after this token and so needs a row there."""
        return token < self.tree.model.vocab_size and token not in self.request.eos

    def _step(self, rows: dict[Path, torch.Tensor]) -> list[Beam]:
        """Take one step of plain beam search, on the rows after all live beams."""
        waiting = [Extension(beam.score, i, -1) for i, beam in enumerate(self.beams) if beam.finished]
        live = [(i, beam.score) for i, beam in enumerate(self.beams) if not beam.finished]
        after = [rows[self.root + self.beams[i].tokens] for i, _ in live]
        extended = extensions(after, live, self.width)
        if len({x.beam for x in extended}) < len(live):
            raise ValueError("the target's rows must be distributions, got NaN, +inf or nothing finite")
        found = best([*waiting, *extended], self.width)
        return [
            self.beams[i] if token < 0 else self._extended(self.beams[i], score, token) for score, i, token in found
        ]

    def _extended(self, beam: Beam, score: float, token: int) -> Beam:
        tokens = (*beam.tokens, token)
        full = len(tokens) == self.request.max_new_tokens
        return Beam(tokens, score, "eos" if token in self.request.eos else "length" if full else None)

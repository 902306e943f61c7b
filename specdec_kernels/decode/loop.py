# SPDX-License-Identifier: Apache-2.0
"""The decode loop: draft, score the draft with one forward pass of the target, verify, emit; roll back by moving on.

What a drafter proposes knows how it is scored, verified and committed (proposal.py). Plain decoding is the same loop
with a drafter that proposes nothing, so all share prefill, caches, sampling and bookkeeping (session.py).
"""

from collections.abc import Callable, Iterator
from time import perf_counter

import torch

from .proposal import Draft
from .request import Request
from .result import Event, Output
from .session import Session

__all__ = ["generate", "stream"]


def generate(
    target, requests: list[Request], drafter=None, *, on_event: Callable[[Event], None] | None = None, **options
) -> Output:
    """Decode `requests` to their ends.

    Args:
        target, requests, drafter: as in `stream`.
        on_event: sees the tokens as they arrive.
        options: the others of `stream`.

    Returns:
        Results in the order of the requests, and the statistics of the whole.

    Raises:
        ValueError: as `stream`.
    """
    output = Output()
    for event in stream(target, requests, drafter, output=output, **options):
        if on_event is not None:
            on_event(event)
    return output


def stream(
    target,
    requests: list[Request],
    drafter=None,
    *,
    verify: str = "token",
    max_batch: int | None = None,
    tokenizer=None,
    output: Output | None = None,
) -> Iterator[Event]:
    """Decode `requests`, yielding the tokens of each as they arrive.

    A request's tokens depend on itself alone (prompt, parameters, seed, drafter), up to the rounding of the models,
    which may differ with the shape of the batch. With an adaptive gamma the law is the same, the very tokens need not
    be.

    Args:
        target: a Model (models/adapters.py).
        requests: at least one.
        drafter: a Drafter (proposal.py), None for plain decoding.
        verify: "token" or "block", how chains are verified (sk.verify_chain).
        max_batch: requests decoded at once; the others wait for a slot. None: all.
        tokenizer: gives events their text.
        output: is filled with results and statistics.

    Returns:
        An iterator of events, the tokens of one request at one step each.

    Raises:
        ValueError: a request that the target, the drafter or `verify` cannot serve, before anything is decoded.
    """
    session = Session(target, requests, drafter, verify, max_batch, tokenizer, output)
    while session.admit():
        for event in _step(session):
            session.clock()
            yield event
        session.retire()
    session.clock()


@torch.inference_mode()
def _step(session: Session) -> list[Event]:
    """One pass of the target over the last token and the proposal of every request in the batch."""
    target, drafter, batch, cache = session.target, session.drafter, session.batch, session.cache
    times = [perf_counter()]
    proposal = drafter.propose(batch)
    observed = proposal is not None
    if not observed:
        proposal = Draft(torch.empty(len(batch), 0, dtype=torch.int64))
    times.append(perf_counter())

    start = [len(s.tokens) - 1 for s in batch]
    last = torch.tensor([[s.tokens[-1]] for s in batch])
    ids = torch.cat((last, proposal.tokens.clamp(0, target.vocab_size - 1)), 1)
    needed = proposal.needs_target
    logits = target.forward(ids, start, cache, branches=proposal.branches) if any(needed) else None
    times.append(perf_counter())

    verified = proposal.verify(logits, batch, session.verify)
    proposal.commit_kv(cache, start, verified)
    emitted, accepted = verified.tokens.tolist(), verified.num_accepted.tolist()
    drafted = (proposal.tokens >= 0).sum(1).tolist()
    times.append(perf_counter())

    if observed:
        drafter.observe(drafted, accepted, times[1] - times[0], times[2] - times[1])
    events = [s.extend(row[: a + 1]) for s, row, a in zip(batch, emitted, accepted)]
    counts = zip(drafted, proposal.tested(verified), accepted, verified.status.tolist(), needed)
    _count(batch, session.output.stats, counts, events, times)
    session.output.stats.target_calls += any(needed)
    return events


def _count(batch, totals, counts, events, times):
    """Each request counts for itself; the seconds of the step are shared equally."""
    seconds = [b - a for a, b in zip(times, times[1:])]
    for s, one, event in zip(batch, counts, events):
        own = s.result.stats
        own.count(*one)
        totals.count(*one)
        totals.new_tokens += len(event.tokens)
        own.target_calls += one[-1]
        own.spend(*(t / len(batch) for t in seconds))
        own.seconds += (perf_counter() - times[0]) / len(batch)
    totals.spend(*seconds)

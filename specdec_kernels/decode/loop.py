# SPDX-License-Identifier: Apache-2.0
"""The decode loop: draft, score the draft with one forward pass of the target, verify, emit; roll back by moving on.

A draft is a chain or a tree of tokens per request, and knows how it is scored and verified (draft.py). Plain decoding
is the same loop with no drafter, so all share prefill, caches, sampling and bookkeeping.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ..rules import TABLE
from .proposal import Draft
from .drafters.token_cascade import PlainCascade
from .request import Event, Request, Result, Stats
from .sequence import Batch, Sequence

__all__ = ["Output", "generate", "stream"]


@dataclass
class Output:
    """Results in the order of the requests, and the statistics of the whole."""

    results: list[Result] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)


def generate(
    target, requests: list[Request], drafter=None, *, on_event: Callable[[Event], None] | None = None, **options
) -> Output:
    """Decode `requests` to their ends; `on_event` sees the tokens as they arrive. Options as in `stream`."""
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

    target: a model adapter (adapters.py). drafter: a Drafter (draft.py), None for plain decoding.
    verify: "token" or "block", how chains are verified (sk.verify_chain).
    max_batch: requests decoded at once; the others wait for a slot. tokenizer: gives events their text.
    output: is filled with results and statistics.

    A request's tokens depend on itself alone (prompt, parameters, seed, drafter), up to the rounding of the models,
    which may differ with the shape of the batch. With an adaptive gamma the law is the same, the very tokens need not
    be.
    """
    if not requests:
        raise ValueError("generate: requests must not be empty")
    if max_batch is not None and max_batch < 1:
        raise ValueError(f"generate: max_batch must be >= 1, got {max_batch}")
    output = Output() if output is None else output
    waiting = deque(Sequence(i, request, tokenizer) for i, request in enumerate(requests))
    output.results[:] = [s.result for s in waiting]
    _check(target, waiting)
    _check_rules(target, drafter, waiting, verify)
    started = perf_counter()
    slots = min(len(waiting), max_batch or len(waiting))
    capacity = max(len(s.tokens) + s.remaining for s in waiting) + (0 if drafter is None else drafter.margin)
    cache = target.new_cache(slots, capacity)
    if drafter is not None:
        drafter.begin(slots, capacity)
    batch = Batch()
    while waiting or batch:
        if waiting and len(batch) < slots:
            batch = Batch(batch)
            while waiting and len(batch) < slots:
                batch.append(_admit(target, cache, len(batch), waiting.popleft(), drafter, output.stats))
        for event in _step(target, cache, batch, drafter, verify, output.stats):
            output.stats.seconds = perf_counter() - started
            yield event
        batch = _retire(batch, cache, drafter)
    output.stats.seconds = perf_counter() - started


def _check(target, sequences):
    for s in sequences:
        largest = max(s.tokens)
        if min(s.tokens) < 0 or largest >= target.vocab_size:
            raise ValueError(
                f"generate: prompt ids must lie in [0, V={target.vocab_size}), request {s.index} has {largest}"
            )
        if len(s.tokens) + s.remaining > target.max_positions:
            raise ValueError(
                f"generate: prompt and max_new_tokens must fit the model's {target.max_positions} positions, "
                f"request {s.index} needs {len(s.tokens) + s.remaining}"
            )


def _check_rules(target, drafter, sequences, verify):
    if isinstance(drafter, PlainCascade) and drafter.vocab_size > target.vocab_size:
        raise ValueError(
            f"generate: PlainCascade's draft must have at most the target's {target.vocab_size} ids, got {drafter.vocab_size}"
        )
    if verify not in ("token", "block"):
        raise ValueError(f"generate: verify must be 'token' or 'block', got {verify!r}")
    name = "plain decoding" if drafter is None else type(drafter).__name__
    if drafter is not None and verify not in drafter.verifies:
        raise ValueError(
            f"generate: verify must be {' or '.join(map(repr, drafter.verifies))} with {name}, got {verify!r}"
        )
    known = ("exact",) if drafter is None else drafter.rules
    for s in sequences:
        rule = s.request.rule
        if rule not in known:
            raise ValueError(
                f"generate: rule must be one of {', '.join(known)} with {name}, request {s.index} has {rule!r}"
            )
        if verify == "block" and not TABLE[rule].defines_distribution:
            raise ValueError(
                f"generate: rule {rule!r} is no law, so verify must be 'token', got 'block' (request {s.index})"
            )


def _admit(target, cache, slot, sequence, drafter, totals) -> Sequence:
    """Read the prompt into a slot; its last token is left to the first step, which needs its logits."""
    began = perf_counter()
    prefix = sequence.tokens[:-1]
    if prefix:
        target.forward(torch.tensor([prefix]), [0], cache, slot, keep=None)
    if drafter is not None:
        drafter.admit(slot, sequence)
    seconds = perf_counter() - began
    for stats in (sequence.result.stats, totals):
        stats.prefill_seconds += seconds
    sequence.result.stats.seconds += seconds
    return sequence


@torch.inference_mode()
def _step(target, cache, batch, drafter, verify, totals) -> list[Event]:
    """One pass of the target over the last token and the draft of every request in the batch."""
    times = [perf_counter()]
    draft = None if drafter is None else drafter.propose(batch)
    proposed = draft is not None
    if not proposed:
        draft = Draft(torch.empty(len(batch), 0, dtype=torch.int64))
    times.append(perf_counter())

    start = [len(s.tokens) - 1 for s in batch]
    last = torch.tensor([[s.tokens[-1]] for s in batch])
    ids = torch.cat((last, draft.tokens.clamp(0, target.vocab_size - 1)), 1)
    logits = target.forward(ids, start, cache, branches=draft.branches) if any(draft.called) else None
    times.append(perf_counter())

    verdict = draft.verify(logits, batch, verify)
    draft.settle(cache, start, verdict)
    emitted, accepted = verdict.tokens.tolist(), verdict.num_accepted.tolist()
    drafted = (draft.tokens >= 0).sum(1).tolist()
    times.append(perf_counter())

    if proposed:
        drafter.observe(drafted, accepted, times[1] - times[0], times[2] - times[1])
    events = [s.extend(row[: a + 1]) for s, row, a in zip(batch, emitted, accepted)]
    found = zip(drafted, draft.tested(verdict), accepted, verdict.status.tolist(), draft.called)
    _count(batch, totals, found, logits is not None, events, times)
    return events


def _count(batch, totals, found, any_called, events, times):
    spent = [b - a for a, b in zip(times, times[1:])]
    for s, (drafted, tested, accepted, bits, called), event in zip(batch, found, events):
        for stats in (s.result.stats, totals):
            stats.rows += called
            stats.drafted += drafted
            stats.widths[drafted] += 1
            stats.accepted += accepted
            stats.tested += tested
            stats.status |= bits
        totals.new_tokens += len(event.tokens)
        _spend(s.result.stats, [t / len(batch) for t in spent])
        s.result.stats.target_calls += called
        s.result.stats.seconds += (perf_counter() - times[0]) / len(batch)
    _spend(totals, spent)
    totals.target_calls += any_called


def _spend(stats, seconds):
    stats.draft_seconds += seconds[0]
    stats.target_seconds += seconds[1]
    stats.verify_seconds += seconds[2]


def _retire(batch, cache, drafter) -> Batch:
    """Drop finished requests; the last one of the batch takes over the freed slot."""
    if not any(s.result.finished for s in batch):
        return batch
    batch = Batch(batch)
    for slot in reversed(range(len(batch))):
        if batch[slot].result.finished:
            last = batch.pop()
            if slot < len(batch):
                batch[slot] = last
                cache.move(len(batch), slot)
                if drafter is not None:
                    drafter.move(len(batch), slot)
    return batch

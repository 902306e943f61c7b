# SPDX-License-Identifier: Apache-2.0
"""A running loop: which requests wait, which sit in which slot of the caches, and one step for all that do."""

from collections import deque
from collections.abc import Iterator
from time import perf_counter

import torch

from .limits import check_device, check_method, check_passes, check_rule, check_size
from .models.prompt import PREFILL_CHUNK, read_tokens, set_prefill_chunk
from .outcome import Outcome
from .proposal import Draft, Drafter
from .request import Request
from .result import Event, Output
from .sequence import Batch, Sequence
from .step_times import StepTimes
from .transfers import is_free, upload

__all__ = ["NoDrafter", "Session"]


class NoDrafter(Drafter):
    """Plain decoding: never a draft."""

    name = "plain decoding"
    num_lookahead, rules, verifies = 0, ("exact",), ("token", "block")

    def propose(self, batch):
        return None


class Session:
    """Requests come and go while others are decoded.

        session = Session(pair.target, drafter, max_batch=8)
        first = session.submit(Request(prompt))
        for event in session.events():  # until nobody is left; what is submitted meanwhile takes part
            ...                         # session.submit(...), session.cancel(first)

    Each request has its own rule, seed, parameters, stop strings and ends, and its tokens depend on it alone, up to the
    rounding of the models, which may differ with the shape of the batch. One thread at a time may use a session.

    Args:
        target, drafter, verify, tokenizer, output: as `stream` takes them.
        max_batch: how many are decoded at once; the others wait, first come, first served.
        capacity: positions of a slot, those of a prompt and its new tokens.
        prefill_chunk: tokens of a prompt that a pass reads, of draft models too: memory for the mask grows with it, and
            a GPU is used better. The text does not depend on it, up to the rounding of the models.

    Raises:
        ValueError: a limit below 1, a `verify` that the drafter cannot serve, a draft model elsewhere than the target,
            or a batch or trees for a model that cannot decode them (`refuses`).
    """

    def __init__(
        self,
        target,
        drafter=None,
        *,
        verify: str = "token",
        max_batch: int = 8,
        capacity: int = 2048,
        prefill_chunk: int = PREFILL_CHUNK,
        tokenizer=None,
        output: Output | None = None,
    ):
        for name, value in (("max_batch", max_batch), ("capacity", capacity), ("prefill_chunk", prefill_chunk)):
            if value < 1:
                raise ValueError(f"generate: {name} must be >= 1, got {value}")
        self.target, self.drafter, self.verify = target, NoDrafter() if drafter is None else drafter, verify
        check_method(self.drafter, verify)
        check_device(target, self.drafter)
        check_passes(target, self.drafter, max_batch)
        self.prefill_chunk = prefill_chunk
        set_prefill_chunk(self.drafter, prefill_chunk)
        self.slots, self.capacity, self.tokenizer = max_batch, capacity, tokenizer
        # The sequences of `batch` lie in slots 0, 1, ... of the target's cache and of the drafter.
        self.waiting, self.batch = deque[Sequence](), Batch((), target.device)
        self.output = Output() if output is None else output
        self.output.results.clear()
        self._last_words: list[Event] = []  # of cancelled requests
        self.cache = target.new_cache(max_batch, capacity + self.drafter.num_lookahead)
        self.drafter.begin(max_batch, capacity + self.drafter.num_lookahead)
        self.drafter.follow(target, self.cache)

    def submit(self, request: Request) -> int:
        """Queue a request for the next free slot -> its index: that of its events and of its result in
        `output.results`.

        Raises:
            ValueError: what the target, the drafter, `verify` or the capacity cannot serve; nothing else is disturbed.
        """
        sequence = Sequence(len(self.output.results), request, self.tokenizer)
        check_size(self.target, self.capacity, sequence)
        check_rule(self.drafter, sequence, self.verify)
        self.drafter.check(self.target, [sequence])
        self.output.results.append(sequence.result)
        self.waiting.append(sequence)
        return sequence.index

    def cancel(self, index: int) -> bool:
        """Drop a request -> False where it had finished before. Its slot is free at once; it keeps the tokens it has,
        and the next step begins with its last event, whose `finished` is "cancelled".

        Raises:
            ValueError: no request has this index.
        """
        if not 0 <= index < len(self.output.results):
            known = len(self.output.results)
            raise ValueError(f"cancel: index must be that of one of {known} submitted requests, got {index}")
        sequence = next((s for s in (*self.waiting, *self.batch) if s.index == index), None)
        if sequence is None:
            return False
        self._last_words.append(sequence.cancel())
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self._retire()
        return True

    @property
    def busy(self) -> bool:
        """Whether a step would do or say anything."""
        return bool(self.waiting or self.batch or self._last_words)

    def events(self) -> Iterator[Event]:
        """The events of step after step, until nobody is left."""
        while self.busy:
            yield from self.step()

    def step(self) -> list[Event]:
        """Give free slots to waiting requests, and all in slots their next tokens -> an event for each of them."""
        began = perf_counter()
        events, self._last_words = self._last_words, []
        self._admit()
        if self.batch:
            events += self._decode()
            self._retire()
        self.output.stats.seconds += perf_counter() - began
        return events

    def _admit(self):
        if self.waiting and len(self.batch) < self.slots:
            self.batch = Batch(self.batch, self.target.device)
            while self.waiting and len(self.batch) < self.slots:
                self._read_prompt(self.waiting.popleft())

    def _read_prompt(self, sequence):
        """Into the next slot; its last token is left to the first step, which needs its logits."""
        began, slot, prefix = perf_counter(), len(self.batch), sequence.tokens[:-1]
        read_tokens(self.target, prefix, self.cache, slot, chunk=self.prefill_chunk)
        self.drafter.admit(slot, sequence)
        seconds = perf_counter() - began
        for stats in (sequence.result.stats, self.output.stats):
            stats.prefill_seconds += seconds
        sequence.result.stats.seconds += seconds
        self.batch.append(sequence)

    @torch.inference_mode()
    def _decode(self) -> list[Event]:
        """One pass of the target over the last token and the proposal of every request in the batch."""
        target, drafter, batch, cache = self.target, self.drafter, self.batch, self.cache
        times = StepTimes(batch.device)
        proposal = drafter.propose(batch) or Draft.nothing(batch)
        times.mark()

        start = [len(s.tokens) - 1 for s in batch]
        last = upload([[s.tokens[-1]] for s in batch], batch.device)
        ids = torch.cat((last, proposal.tokens.clamp(-1, target.vocab_size - 1)), 1)
        needed, row = proposal.needs_target, _row_of_each(ids)
        keep = "all" if row is None else "present"
        logits = target.forward(ids, start, cache, keep=keep, branches=proposal.branches) if any(needed) else None
        times.mark()

        verified = proposal.verify(logits, batch, self.verify, row)
        proposal.commit_kv(cache, start, verified)
        times.mark()
        outcome = Outcome.read(proposal, verified, batch.readback, times)
        drafter.observe(outcome)
        events = [s.extend(tokens) for s, tokens in zip(batch, outcome.emitted)]
        counts = zip(outcome.drafted, outcome.tested, outcome.accepted, outcome.status, needed)
        _count(batch, self.output.stats, counts, events, times)
        self.output.stats.target_calls += any(needed)
        return events

    def _retire(self):
        """Drop finished requests; the last one of the batch takes over the freed slot."""
        if not any(s.result.finished for s in self.batch):
            return
        self.batch = Batch(self.batch, self.target.device)
        for slot in reversed(range(len(self.batch))):
            if self.batch[slot].result.finished:
                last = self.batch.pop()
                if slot < len(self.batch):
                    self.batch[slot] = last
                    self.cache.move(len(self.batch), slot)
                    self.drafter.move(len(self.batch), slot)


def _row_of_each(ids: torch.Tensor) -> torch.Tensor | None:
    """[n, T] the number of each token among those that are there; None: all are, or nobody knows for free."""
    there = ids >= 0
    return (there.flatten().cumsum(0) - 1).view_as(ids) if is_free(ids) and not there.all() else None


def _count(batch, totals, counts, events, times):
    """Each request counts for itself; the seconds of the step, and of its parts, are shared equally."""
    seconds = times.seconds()
    for s, one, event in zip(batch, counts, events):
        own = s.result.stats
        own.count(*one)
        totals.count(*one)
        totals.new_tokens += len(event.tokens)
        own.target_calls += one[-1]
        own.spend(*(t / len(batch) for t in seconds))
        own.seconds += (perf_counter() - times.began) / len(batch)
    totals.spend(*seconds)

# SPDX-License-Identifier: Apache-2.0
"""A running decode loop: a queue of requests, their slots in the caches, and steps over all requests in slots."""

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import torch

from .interfaces import check_count, check_drafter, check_request, check_target, check_tokenizer
from .isolation import each_alone, over_ranks_error, together
from .limits import check_device, check_method, check_passes, check_rule, check_size
from .logprobs import StepLogprobs
from .models.prompt import PREFILL_CHUNK, read_tokens, set_prefill_chunk
from .outcome import Outcome
from .proposal import Draft, Drafter
from .request import Request
from .result import Event, Result, Stats
from .runs import check_served, claim
from .sequence import Batch, Sequence
from .step_times import StepTimes
from .transfers import row_of_each, upload

__all__ = ["NoDrafter", "Session"]

_log = logging.getLogger(__name__)


class NoDrafter(Drafter):
    """The drafter of plain decoding, which never drafts."""

    name = "plain decoding"
    num_lookahead, rules, verifies = 0, ("exact",), ("token", "block", "race")

    def propose(self, batch):
        return None


class Session:
    """A decode loop in which requests can be added and cancelled while others are decoded.

        session = Session(pair.target, drafter, max_batch=8)
        first = session.submit(Request(prompt))
        for event in session.events():  # until no request is left, including those submitted meanwhile
            ...                         # session.submit(...), session.cancel(first), session.pop(event.index)

    Each request has its own rule, seed, parameters, stop strings and end ids. Its tokens depend only on the request, up
    to the models' rounding, which may differ with the shape of the batch. One thread at a time may use a session.

    If a request's step raises, or the target's logits for its next token are invalid (NaN, +inf or nothing finite), it
    ends with `finished` "error" and the reason in `error`; the others continue. `results` has the result of every
    request by index until it is popped. `stats` counts over all requests.

    Args:
        target, drafter, verify, tokenizer: as in `stream`.
        max_batch: the most requests decoded at once; the others wait, first come, first served.
        capacity: positions of a slot, the most that a prompt and its continuation may have together.
        prefill_chunk: the most prompt tokens of one pass, also in draft models. A larger chunk uses a GPU better
            and needs more memory for the mask. The text does not depend on it, up to the models' rounding.
        op: the call that errors name, for functions that make a session. None: Session, or its method.

    Raises:
        TypeError: the target is not a Model, the drafter is not a Drafter, or the tokenizer cannot decode.
        ValueError: a limit below 1, a `verify` that the drafter cannot serve, a draft model on another device than the
            target, a drafter in use by another run, batches or trees for a model without them (Model.refuses).
    """

    def __init__(
        self,
        target,
        drafter=None,
        *,
        verify: str | None = None,
        max_batch: int = 8,
        capacity: int = 2048,
        prefill_chunk: int = PREFILL_CHUNK,
        tokenizer=None,
        op: str | None = None,
    ):
        self.op, self._submit_op = op or "Session", op or "submit"
        self.slots = check_count(self.op, "max_batch", max_batch)
        self.capacity = check_count(self.op, "capacity", capacity)
        self.prefill_chunk = check_count(self.op, "prefill_chunk", prefill_chunk)
        self.target = check_target(self.op, target)
        self.drafter = NoDrafter() if drafter is None else check_drafter(self.op, "drafter", drafter)
        self.verify, self.tokenizer = check_method(self.op, self.drafter, verify), check_tokenizer(self.op, tokenizer)
        check_device(self.op, target, self.drafter)
        check_passes(self.op, target, self.drafter, self.slots)
        # The sequences of `batch` are in slots 0, 1, ... of the target's cache and of the drafter.
        self.waiting, self.batch = deque[Sequence](), Batch((), target.device, race=self.verify == "race")
        self.results: dict[int, Result] = {}
        self.submitted, self.stats = 0, Stats()
        self._last_words: list[Event] = []  # the last events of cancelled requests
        claim(self)
        set_prefill_chunk(self.drafter, self.prefill_chunk)
        size = self.slots, self.capacity + self.drafter.num_lookahead
        self.cache = target.new_cache(*size)
        self.drafter.begin(*size)
        self.drafter.follow(target, self.cache)

    def submit(self, request: Request) -> int:
        """Queue a request for the next free slot, and return its index in events and in `results`.

        Raises:
            TypeError, ValueError: not a request, or one that the target, the drafter, `verify` or the capacity cannot
                serve. The session is not changed then.
        """
        # replace checks its fields again: its prompt may have changed.
        request = replace(check_request(self._submit_op, "request", request))
        check_served(self._submit_op, self)
        sequence = Sequence(self.submitted, request, self.tokenizer)
        check_size(self._submit_op, self.target, self.capacity, sequence)
        check_rule(self._submit_op, self.drafter, sequence, self.verify)
        self.drafter.check(self.target, [sequence])
        self.submitted += 1
        self.results[sequence.index] = sequence.result
        self.waiting.append(sequence)
        return sequence.index

    def cancel(self, index: int) -> bool:
        """Cancel a request; return False if it had ended before. Its slot is free at once; its result keeps its tokens.

        The next step returns the request's last event first, with `finished` "cancelled".

        Raises:
            ValueError: no request has this index.
        """
        self._check_index("cancel", index)
        sequence = self._find(index)
        if sequence is None:
            return False
        self._last_words.append(sequence.cancel())
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self._retire()
        return True

    def pop(self, index: int) -> Result:
        """Return the result of a request that has ended, and remove it from the session.

        Raises:
            ValueError: no request has this index, it has not ended, or its result was taken before.
        """
        self._check_index("pop", index)
        if index not in self.results or self._find(index) is not None:
            why = "has not ended" if index in self.results else "was taken before"
            raise ValueError(f"pop: index must be that of a request that has ended, got {index}, which {why}")
        return self.results.pop(index)

    def close(self) -> None:
        """Drop all requests, without events. The drafter may then serve another run."""
        self.waiting.clear()
        self._last_words.clear()
        self.batch = self.batch.of(())

    def _check_index(self, op: str, index: int) -> None:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < self.submitted:
            raise ValueError(f"{op}: index must be that of one of {self.submitted} submitted requests, got {index}")

    def _find(self, index: int) -> Sequence | None:
        """Return the sequence of a request that waits or is decoded; None if it has ended."""
        return next((s for s in (*self.waiting, *self.batch) if s.index == index), None)

    @property
    def busy(self) -> bool:
        """Whether a step would decode anything or return an event."""
        return bool(self.waiting or self.batch or self._last_words)

    def events(self) -> Iterator[Event]:
        """Take steps until no request is left, and yield their events."""
        while self.busy:
            yield from self.step()

    def step(self) -> list[Event]:
        """Put waiting requests into free slots, and decode the next tokens of all requests in slots -> their events."""
        began = perf_counter()
        events, self._last_words = self._last_words, []
        events += self._admit()
        if self.batch:
            step = together if self.drafter.over_ranks else each_alone
            events += step(self._decode, self._forget, self.batch)
            self._retire()
        self.stats.seconds += perf_counter() - began
        return events

    def _admit(self) -> list[Event]:
        """Fill free slots with waiting requests -> the last events of requests whose prompt could not be read."""
        failed: list[Event] = []
        if self.waiting and len(self.batch) < self.slots:
            self.batch = self.batch.of(self.batch)  # a new Batch: the old one's cached arguments would be stale
        while self.waiting and len(self.batch) < self.slots:
            sequence = self.waiting[0]  # stays in the queue until it is admitted, even if this is interrupted
            try:
                self._read_prompt(sequence)
            except Exception as error:
                if self.drafter.over_ranks:
                    raise over_ranks_error("prompt", error) from error
                failed.append(sequence.fail("prompt", error))
                self._clear(len(self.batch))
            self.waiting.popleft()
        return failed

    def _read_prompt(self, sequence):
        """Read a prompt into the next slot. Its last token is left to the first step, which needs its logits."""
        began, slot, prefix = perf_counter(), len(self.batch), sequence.tokens[:-1]
        read_tokens(self.target, prefix, self.cache, slot, chunk=self.prefill_chunk)
        self.drafter.admit(slot, sequence)
        seconds = perf_counter() - began
        for stats in (sequence.result.stats, self.stats):
            stats.prefill_seconds += seconds
        sequence.result.stats.seconds += seconds
        self.batch.append(sequence)

    @torch.inference_mode()
    def _decode(self, batch: Batch) -> list[Event]:
        """Take one step of `batch`, in one pass of the target. Sequences change last, after all that can fail."""
        target, drafter, cache, slot = self.target, self.drafter, self.cache, batch.first
        times = StepTimes(batch.device)
        proposal = drafter.propose(batch) or Draft.nothing(batch)
        batch.views.check(proposal)
        times.mark()

        start = [len(s.tokens) - 1 for s in batch]
        last = upload([[s.tokens[-1]] for s in batch], batch.device)
        ids = torch.cat((last, proposal.tokens.clamp(-1, target.vocab_size - 1)), 1)
        needed, row = proposal.needs_target, row_of_each(ids)
        options = dict(slot=slot, keep="all" if row is None else "present", branches=proposal.branches)
        logits = target.forward(ids, start, cache, **options) if any(needed) else None
        times.mark()

        verified = proposal.verify(logits, batch, self.verify, row)
        proposal.commit_kv(cache, start, verified, slot)
        logprobs = StepLogprobs(proposal, verified, logits, batch, row)
        times.mark()
        outcome = Outcome.read(proposal, verified, batch.readback, times)
        drafter.observe(outcome)
        parts = times.seconds()
        taken = zip(outcome.emitted, outcome.errors, outcome.accepted, logprobs.read([*map(len, outcome.emitted)]))
        events = [s.extend(*each) for s, each in zip(batch, taken)]
        counts = [(*outcome.counts(i, len(event.tokens)), needed[i]) for i, event in enumerate(events)]
        _count(batch, self.stats, counts, events, parts, perf_counter() - times.began)
        return events

    def _forget(self, batch: Batch) -> None:
        """Drop the pending reads and the drafts of a failed step."""
        batch.readback.forget()
        self.drafter.forget()

    def _retire(self) -> None:
        """Remove finished requests from their slots."""
        if not any(s.result.finished for s in self.batch):
            return
        self.batch = self.batch.of(self.batch)
        for slot in reversed(range(len(self.batch))):
            if self.batch[slot].result.finished:
                self._fill(slot)

    def _clear(self, slot: int) -> None:
        """Clear a slot. A mask hides old keys and values from the next request, but not NaN, since 0 * NaN is NaN."""
        self.drafter.release(slot)
        self.cache.clear(slot)

    def _fill(self, slot: int) -> None:
        """Move the batch's last request into the slot. If that fails, it is queued and read again."""
        while len(self.batch) > slot + 1:
            last = self.batch.pop()
            try:
                self.cache.move(len(self.batch), slot)
                self.drafter.move(len(self.batch), slot)
            except Exception as error:
                _log.warning("Request %d could not be moved and is read again: %r", last.index, error)
                self.waiting.appendleft(last)
            else:
                self.batch[slot] = last
                return
            finally:
                self._clear(len(self.batch))
        self.batch.pop()
        self._clear(slot)


def _count(batch, totals, counts, events, parts, seconds):
    """Add a step to the statistics of each request and to the totals. Its seconds are divided equally among them."""
    for s, one, event in zip(batch, counts, events):
        own = s.result.stats
        own.count(*one)
        totals.count(*one)
        totals.new_tokens += len(event.tokens)
        own.target_calls += one[-1]
        own.spend(*(t / len(batch) for t in parts))
        own.seconds += seconds / len(batch)
    totals.spend(*parts)
    totals.target_calls += any(one[-1] for one in counts)

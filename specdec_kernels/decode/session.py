# SPDX-License-Identifier: Apache-2.0
"""A run of the loop: which requests wait, which sit in which slot of the caches, and what has come out so far."""

from collections import deque
from time import perf_counter

import torch

from ..registry import CHAIN_METHODS
from .proposal import Drafter
from .result import Output
from .sequence import Batch, Sequence

__all__ = ["NoDrafter", "Session"]


class NoDrafter(Drafter):
    """Plain decoding: never a draft."""

    num_lookahead, rules, verifies = 0, ("exact",), ("token", "block")

    def propose(self, batch):
        return None


class Session:
    """The sequences of `batch` lie in slots 0, 1, ... of the target's cache and of the drafter."""

    def __init__(self, target, requests, drafter, verify, max_batch, tokenizer, output: Output | None):
        if not requests:
            raise ValueError("generate: requests must not be empty")
        if max_batch is not None and max_batch < 1:
            raise ValueError(f"generate: max_batch must be >= 1, got {max_batch}")
        self.target, self.drafter, self.verify = target, NoDrafter() if drafter is None else drafter, verify
        self.waiting = deque(Sequence(i, request, tokenizer) for i, request in enumerate(requests))
        self.batch, self.output = Batch(), Output() if output is None else output
        self.output.results[:] = [s.result for s in self.waiting]
        _check_sizes(target, self.waiting)
        _check_rules(self.drafter, self.waiting, verify)
        self.drafter.check(target, self.waiting)
        self.started = perf_counter()
        self.slots = min(len(self.waiting), max_batch or len(self.waiting))
        capacity = max(len(s.tokens) + s.remaining for s in self.waiting) + self.drafter.num_lookahead
        self.cache = target.new_cache(self.slots, capacity)
        self.drafter.begin(self.slots, capacity)

    def admit(self) -> bool:
        """Give free slots to waiting requests; False once nobody is left to decode for."""
        if self.waiting and len(self.batch) < self.slots:
            self.batch = Batch(self.batch)
            while self.waiting and len(self.batch) < self.slots:
                self._read_prompt(self.waiting.popleft())
        return bool(self.batch)

    def _read_prompt(self, sequence):
        """Into the next slot; its last token is left to the first step, which needs its logits."""
        began, slot, prefix = perf_counter(), len(self.batch), sequence.tokens[:-1]
        if prefix:
            self.target.forward(torch.tensor([prefix]), [0], self.cache, slot, keep=None)
        self.drafter.admit(slot, sequence)
        seconds = perf_counter() - began
        for stats in (sequence.result.stats, self.output.stats):
            stats.prefill_seconds += seconds
        sequence.result.stats.seconds += seconds
        self.batch.append(sequence)

    def retire(self) -> None:
        """Drop finished requests; the last one of the batch takes over the freed slot."""
        if not any(s.result.finished for s in self.batch):
            return
        self.batch = Batch(self.batch)
        for slot in reversed(range(len(self.batch))):
            if self.batch[slot].result.finished:
                last = self.batch.pop()
                if slot < len(self.batch):
                    self.batch[slot] = last
                    self.cache.move(len(self.batch), slot)
                    self.drafter.move(len(self.batch), slot)

    def clock(self) -> None:
        self.output.stats.seconds = perf_counter() - self.started


def _check_sizes(target, sequences):
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


def _check_rules(drafter, sequences, verify):
    name = "plain decoding" if isinstance(drafter, NoDrafter) else type(drafter).__name__
    if verify not in CHAIN_METHODS:
        raise ValueError(f"generate: verify must be 'token' or 'block', got {verify!r}")
    if verify not in drafter.verifies:
        raise ValueError(
            f"generate: verify must be {' or '.join(map(repr, drafter.verifies))} with {name}, got {verify!r}"
        )
    for s in sequences:
        rule = s.request.rule
        if rule not in drafter.rules:
            raise ValueError(
                f"generate: rule must be one of {', '.join(drafter.rules)} with {name}, request {s.index} has {rule!r}"
            )
        if rule not in CHAIN_METHODS[verify].rules:
            raise ValueError(
                f"generate: rule {rule!r} is no law, so verify must be 'token', got 'block' (request {s.index})"
            )

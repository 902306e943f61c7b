# SPDX-License-Identifier: Apache-2.0
"""The tokens that requests have used, as the lists that ``Penalties`` reads, kept from step to step.

Each step first adds the tokens that were emitted since the step before to the requests' lists. A list is made anew if
its request was not in the step before (new, or resumed after a preemption), or if its text is no longer the one that
was counted. On the CPU only, so nothing waits for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Used:
    """One request's tokens: the text that was counted, and its list, the first `size` entries of ids and counts."""

    prompt: np.ndarray
    output: list[int]
    ids: np.ndarray  # int32, ascending
    counts: np.ndarray  # int32, how often each is in the output
    size: int

    def add(self, token: np.int32) -> None:
        """Count one more token of the output."""
        n = self.size
        place = int(self.ids[:n].searchsorted(token))
        if place < n and self.ids[place] == token:
            self.counts[place] += 1
            return
        if n == len(self.ids):
            self.ids, self.counts = (np.concatenate([x, np.zeros(n + 64, np.int32)]) for x in (self.ids, self.counts))
        for x, y in ((self.ids, token), (self.counts, 1)):
            x[place + 1 : n + 1] = x[place:n]
            x[place] = y
        self.size += 1


class Histories:
    """The lists of the requests of a runner's last step, by request id."""

    def __init__(self) -> None:
        self.kept: dict[str, Used] = {}
        self.V = 0

    def lists(
        self, requests: Sequence[str], prompts: Sequence[np.ndarray], outputs: Sequence[list[int]], V: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ids, counts [B, H] int32 of a step's requests; the lists of others are dropped.

        Tokens outside [0, V) are not counted. H is the length of the longest list; the ids of shorter ones end in -1.
        """
        if V != self.V:
            self.kept, self.V = {}, V
        texts = zip(requests, prompts, outputs, strict=True)
        self.kept = {name: self._used(self.kept.get(name), prompt, output) for name, prompt, output in texts}
        used = list(self.kept.values())
        size = max((x.size for x in used), default=0)
        ids, counts = np.full((len(used), size), -1, dtype=np.int32), np.zeros((len(used), size), dtype=np.int32)
        for b, x in enumerate(used):
            ids[b, : x.size], counts[b, : x.size] = x.ids[: x.size], x.counts[: x.size]
        return ids, counts

    def _used(self, known: Used | None, prompt: np.ndarray, output: list[int]) -> Used:
        end = len(output)
        while end and output[end - 1] < 0:  # tokens that async scheduling has not filled in yet
            end -= 1
        before = 0 if known is None else len(known.output)
        if known is None or output[:before] != known.output or not np.array_equal(prompt, known.prompt):
            return self._made(prompt.copy(), output[:end])
        if end > before:
            known.output += output[before:end]
            for token in self._ids(output[before:end]):
                known.add(token)
        return known

    def _made(self, prompt: np.ndarray, output: list[int]) -> Used:
        """Return the list of a text that nothing is known of."""
        before = self._ids(prompt)
        ids, place = np.unique(np.concatenate([before, self._ids(output)]), return_inverse=True)
        counts = np.bincount(place[len(before) :], minlength=len(ids)).astype(np.int32)
        return Used(prompt, output, ids, counts, len(ids))

    def _ids(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return these tokens without pads."""
        ids = np.asarray(tokens, dtype=np.int32)
        return ids[(ids >= 0) & (ids < self.V)]


@dataclass(frozen=True)
class Texts:
    """The texts of a step's batch, which are read when the step's rows are verified."""

    histories: Histories
    batch: Any  # the runner's InputBatch

    def lists(self, outputs: Sequence[list[int]], V: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ids, counts [B, H] of prompts and outputs, as ``Histories.lists`` does."""
        batch = self.batch
        prompts = [batch.token_ids_cpu[b, : batch.num_prompt_tokens[b]] for b in range(len(batch.req_ids))]
        return self.histories.lists(batch.req_ids, prompts, outputs, V)


def of_runner(runner: Any) -> Texts | None:
    """Return the texts of a step of a runner; None, and its lists are dropped, if no request has a penalty."""
    batch = runner.input_batch
    if batch.sampling_metadata.no_penalties:
        runner.specdec_histories = None
        return None
    if getattr(runner, "specdec_histories", None) is None:
        runner.specdec_histories = Histories()
    return Texts(runner.specdec_histories, batch)

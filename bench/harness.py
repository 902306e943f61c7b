# SPDX-License-Identifier: Apache-2.0
"""A benchmark declares its bytes; time, GB/s and the ratio to each peer fall out.

Variants of a case are interleaved: one call of each per round, medians over the rounds, so that whatever else the
machine does falls on all alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Work:
    """What a case times. `ours` and each peer do the same work on the same inputs."""

    ours: Callable[[], object]
    bytes: int = 0  # that must be read and written; 0 where the cost is the call itself
    peers: dict[str, Callable[[], object]] = field(default_factory=dict)
    calls: int = 1  # per timing, for work of a few microseconds


@dataclass
class Case:
    """One row of the table; its inputs are built when it is measured."""

    label: str  # what --only selects
    build: Callable[[], Work]


@dataclass
class Result:
    bytes: int
    seconds: dict[str, float]  # median per call, "ours" first

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds["ours"] / 1e9

    @property
    def ratios(self) -> dict[str, float]:
        """How many times as long each peer takes."""
        ours, *peers = self.seconds
        return {peer: self.seconds[peer] / self.seconds[ours] for peer in peers}


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], object], calls: int, device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def measure(case: Case, device: str, rounds: int) -> Result:
    work = case.build()
    variants = {"ours": work.ours, **work.peers}
    for call in variants.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            times[name].append(timed(call, work.calls, device))
    return Result(work.bytes, {name: statistics.median(t) for name, t in times.items()})


def copy_bandwidth(device: str, rounds: int = 7, megabytes: int = 256) -> float:
    """GB/s of a plain copy, bytes read plus bytes written."""
    source = torch.ones(megabytes * 2**18, device=device)
    target = torch.empty_like(source)
    seconds = statistics.median(timed(lambda: target.copy_(source), 1, device) for _ in range(rounds))
    return 2 * source.nbytes / seconds / 1e9


def logits(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Rows as peaked as a language model's: a few tokens hold most of the mass."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.empty(shape, dtype=torch.float32).normal_(0, 2, generator=generator)
    head = torch.randint(0, shape[-1], (*shape[:-1], 32), generator=generator)
    z.scatter_add_(-1, head, torch.linspace(14, 4, 32).expand(head.shape).contiguous())
    return z.to(dtype).to(device)


Cases = Iterator[Case]

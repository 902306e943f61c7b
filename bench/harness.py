# SPDX-License-Identifier: Apache-2.0
"""Measurement of benchmarks: a benchmark declares its bytes, and gets times, GB/s and ratios to peers.

The variants of a case are interleaved: each round times every variant once, and medians over the rounds are reported.
So other load on the machine affects all variants alike. On a GPU each call uses the next of several copies of the
inputs, which together exceed the cache if at most 512 suffice. A peer is another implementation of the same work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

import torch

from bench import clock, rehearsal

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Unavailable(Exception):
    """The reason why a peer cannot run here; it is printed below the table."""


@dataclass
class Work:
    """The work that a case times. `ours` and each peer do the same work on the same inputs."""

    inputs: SimpleNamespace
    ours: Callable[[SimpleNamespace], object]
    bytes: int = 0  # bytes that must be read and written; 0: only the cost of the call matters
    second_read: int = 0  # bytes of the same data that our kernels read again, as the benchmark's docstring counts them
    peers: dict[str, Callable[[SimpleNamespace], object]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # peer -> why it does not run
    calls: int = 1  # calls per timing, more for work of a few microseconds; on a GPU the minimum; ignored for graphs
    outcome: Callable[[object], float] | None = None  # a number from an output; variants' numbers agree up to chance

    def peer(self, name: str, make: Callable[[], Callable[[SimpleNamespace], object]]) -> None:
        try:
            self.peers[name] = make()
        except Unavailable as reason:
            self.skipped[name] = str(reason)


@dataclass
class Case:
    """One row of the table; its inputs are built when it is measured."""

    label: str  # selected by --only
    make: Callable[[], Work]
    last: bool = False  # True: its setup is slow, so it is measured after all others

    def build(self) -> Work:
        return rehearsal.smaller(self.make)()


@dataclass
class Result:
    bytes: int
    second_read: int
    # "call" and, on a GPU, "graph" -> variant ("ours" first) -> the seconds of each round
    times: dict[str, dict[str, list[float]]]
    outcome: dict[str, float]
    skipped: dict[str, str]

    @cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Medians of `times`. A variant that cannot be captured has no entry under "graph"."""
        return {
            way: {name: statistics.median(t) for name, t in variants.items()} for way, variants in self.times.items()
        }

    @property
    def way(self) -> str:
        """The way of timing that our own row reports: the graph's replay if there is one."""
        return "graph" if "ours" in self.seconds.get("graph", {}) else "call"

    @property
    def ours(self) -> float:
        return self.seconds[self.way]["ours"]

    @property
    def spread(self) -> float:
        """Interquartile range of the rounds, divided by the median. A smaller difference is noise."""
        t = self.times[self.way]["ours"]
        low, _, high = statistics.quantiles(t, n=4) if len(t) > 1 else (t[0], t[0], t[0])
        return (high - low) / self.ours

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.ours / 1e9

    @property
    def gb_per_s_with_second_read(self) -> float:
        return (self.bytes + self.second_read) / self.ours / 1e9

    @property
    def ratios(self) -> dict[str, float]:
        """Time of each peer divided by ours, both timed in the same way."""
        ratios = {}
        for name in self.seconds["call"]:
            way = self.way if name in self.seconds[self.way] else "call"
            ratios[name] = self.seconds[way][name] / self.seconds[way]["ours"]
        del ratios["ours"]
        return ratios


def copies(work: Work, device: str) -> list[SimpleNamespace]:
    """Return the inputs and, on a GPU, copies: they fill three times its L2 cache, up to 512 or a quarter of memory."""
    if device != "cuda" or not work.bytes:
        return [work.inputs]
    properties = torch.cuda.get_device_properties(0)
    size = max(1, sum(x.nbytes for x in vars(work.inputs).values() if isinstance(x, torch.Tensor)))
    n = max(2, min(3 * properties.L2_cache_size // work.bytes + 1, 512, properties.total_memory // 4 // size))

    def again() -> SimpleNamespace:
        return SimpleNamespace(
            **{name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in vars(work.inputs).items()}
        )

    return [work.inputs] + [again() for _ in range(n - 1)]


def measure(case: Case, device: str, rounds: int, peers: Callable[[str], bool] = lambda name: True) -> Result:
    work = case.build()
    sets = copies(work, device)
    skipped = {name: why for name, why in work.skipped.items() if peers(name)}
    variants = {"ours": work.ours, **{name: call for name, call in work.peers.items() if peers(name)}}
    ways = {"call": clock.stream, "graph": clock.graph} if device == "cuda" else {"call": clock.host}
    outcome: dict[str, float] = {}
    timers: dict[tuple[str, str], Callable[[], float]] = {}
    for name, call in variants.items():
        try:
            for inputs in sets:
                output = call(inputs)
            if work.outcome is not None and (value := work.outcome(output)) is not None:
                outcome[name] = value
            timers["call", name] = ways["call"](call, sets, work.calls)
        except Exception as error:  # a failing peer is skipped; the others are still timed
            if name == "ours":
                raise
            skipped[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if "graph" in ways:
            try:
                timers["graph", name] = ways["graph"](call, sets, work.calls)
            except RuntimeError as error:
                skipped[f"{name} (graph)"] = str(error).splitlines()[0]
    times: dict[str, dict[str, list[float]]] = {way: {} for way in ways}
    for _ in range(rounds):
        for (way, name), once in timers.items():
            times[way].setdefault(name, []).append(once())
    return Result(work.bytes, work.second_read, times, outcome, skipped)


def copy_bandwidth(device: str, rounds: int = 9) -> float:
    """Return the GB/s of a plain copy, counting bytes read plus bytes written."""
    megabytes = 256
    if device == "cuda":
        megabytes = max(megabytes, 32 * torch.cuda.get_device_properties(0).L2_cache_size >> 20)
    source = torch.empty(megabytes * 2**18, device=device).uniform_()
    target = torch.empty_like(source)
    way = clock.stream if device == "cuda" else clock.host
    target.copy_(source)
    if device == "cuda":
        clock.warm_up(lambda: target.copy_(source))
    once = way(lambda _: target.copy_(source), [None], 1)
    return 2 * source.nbytes / statistics.median(once() for _ in range(rounds)) / 1e9


def logits(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Return rows as peaked as a language model's: a few tokens have most of the mass."""
    generator = torch.Generator(device).manual_seed(seed)
    z = torch.empty(shape, dtype=torch.float32, device=device).normal_(0, 2, generator=generator)
    head = torch.randint(0, shape[-1], (*shape[:-1], 32), generator=generator, device=device)
    z.scatter_add_(-1, head, torch.linspace(14, 4, 32, device=device).expand(head.shape).contiguous())
    return z.to(dtype)


def flat_logits(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Return flat rows, without dominant tokens."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, dtype=torch.float32, device=device).normal_(generator=generator).to(dtype)


Cases = Iterator[Case]

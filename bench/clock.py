# SPDX-License-Identifier: Apache-2.0
"""Three ways to time a call. Each returns a function that times one run of calls and returns seconds per call.

`host` reads the host's clock, for CPU calls. `stream` puts events around consecutive calls: the time that a caller
waits for, including launches. `graph` puts events around a replay of many captured calls: the time of the kernels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[object], object]  # called with one set of inputs
LEAST = 2e-3  # least seconds between two events, so that their resolution and a replay's launch are below 1% of it


def host(call: Call, sets: Sequence[object], calls: int) -> Callable[[], float]:
    def once() -> float:
        start = time.perf_counter()
        for i in range(calls):
            call(sets[i % len(sets)])
        return (time.perf_counter() - start) / calls

    return once


def between_events(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def warm_up(run: Callable[[], object]) -> None:
    """Keep the GPU busy for half a second, until its clocks have risen."""
    start = time.perf_counter()
    while time.perf_counter() - start < 250 * LEAST:
        between_events(run)


def enough(seconds: float, sets: int) -> int:
    """Return how many calls of `seconds` fill the least time: whole rounds over the input sets, up to 1,024 calls."""
    return sets * min(max(1, math.ceil(LEAST / max(seconds, 1e-7) / sets)), max(1, 1024 // sets))


def stream(call: Call, sets: Sequence[object], calls: int = 1) -> Callable[[], float]:
    def run() -> None:
        for i in range(n):
            call(sets[i % len(sets)])

    n = max(len(sets), calls)
    n = max(enough(between_events(run) / n, len(sets)), calls)
    return lambda: between_events(run) / n


def graph(call: Call, sets: Sequence[object], calls: int = 1) -> Callable[[], float]:
    """Return a timer of replays. Raises if the call cannot be captured (it waits, or copies from unpinned memory)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries initialise per stream, which must not happen in the capture
        call(sets[0])
    torch.cuda.current_stream().wait_stream(side)

    def capture(n: int) -> torch.cuda.CUDAGraph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for i in range(n):
                call(sets[i % len(sets)])
        captured.replay()
        return captured

    pilot = capture(len(sets))
    n = enough(between_events(pilot.replay) / len(sets), len(sets))
    captured = pilot if n == len(sets) else capture(n)
    return lambda: between_events(captured.replay) / n

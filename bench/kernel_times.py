# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.kernel_times [--csv FILE]``: what each kernel of the main cases takes on a GPU, and all of a call's
from the first one's beginning to the last one's end.

Times are torch's profiler's, each call on the next copy of the inputs. A kernel that begins while the one before still
runs counts the time it waits, so such times add up to more than the call's own, which is the row named CALL.
"""

from __future__ import annotations

import csv
import re
import time
from typing import Annotated, NamedTuple

import torch
import typer
from torch.autograd import DeviceType

from bench import rehearsal
from bench.harness import Work, copies
from bench.main_cases import LABELS, case

CALLS = 20  # that are profiled; as many go before
CALL = "(the call)"


class KernelTime(NamedTuple):
    op: str
    case: str
    kernel: str
    launches: float  # per call
    us: float  # each


class Event(NamedTuple):
    """A kernel's run, or a copy's or a memset's."""

    name: str
    start: float  # us
    end: float


def short(name: str) -> str:
    """judge_rows<false>, of what the profiler calls void specdec::(anonymous namespace)::judge_rows<false>(Step)"""
    found = re.search(r"(?:\(anonymous namespace\)::|\b)(\w+(?:<[^<>()]*>)?)\(", name)
    return (found[1] if found else name)[:60]


def profiled(work: Work) -> list[Event]:
    """All that CALLS calls ran on the GPU, in the order in which it began."""
    sets = copies(work, "cuda")
    for i in range(CALLS):
        work.ours(sets[i % len(sets)])
    torch.cuda.synchronize()
    rehearsed = rehearsal.active()
    activity = torch.profiler.ProfilerActivity.CPU if rehearsed else torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        for i in range(CALLS):
            work.ours(sets[i % len(sets)])
        torch.cuda.synchronize()
    if rehearsed:
        ran = [e for e in profile.events() if e.cpu_parent is None]
    else:
        ran = [e for e in profile.events() if e.device_type == DeviceType.CUDA]
    return sorted((Event(short(e.name), e.time_range.start, e.time_range.end) for e in ran), key=lambda e: e.start)


def times(events: list[Event]) -> list[tuple[str, float, float]]:
    """(kernel, launches per call, microseconds each), the dearest first; last the call, if each made as many
    launches."""
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(event.name, []).append(event.end - event.start)
    found = [(name, len(us) / CALLS, sum(us) / len(us)) for name, us in by_name.items()]
    found.sort(key=lambda kernel: -kernel[1] * kernel[2])
    each = len(events) // CALLS
    if events and len(events) == each * CALLS:
        calls = [events[i : i + each] for i in range(0, len(events), each)]
        spans = [max(event.end for event in call) - call[0].start for call in calls]
        found.append((CALL, 1.0, sum(spans) / len(spans)))
    return found


def main(
    csv_file: Annotated[str, typer.Option("--csv", help="write every kernel of every case")] = "",
    seconds: Annotated[float, typer.Option(help="start nothing after so many")] = 60,
) -> None:
    began, rows = time.monotonic(), []
    for op, name in LABELS:
        if time.monotonic() - began > seconds and rows:
            break
        for kernel, launches, us in times(profiled(case(op, name).build())):
            rows.append(KernelTime(op, name, kernel, launches, us))
            print(f"{op} {name}: {kernel} {us:.1f} us" + (f" x {launches:g}" if launches != 1 else ""), flush=True)
        torch.cuda.empty_cache()
        if csv_file:
            with open(csv_file, "w", newline="") as file:
                csv.writer(file).writerows([KernelTime._fields, *rows])
    measured = {(row.op, row.case) for row in rows}
    print(f"{sum(row.kernel != CALL for row in rows)} kernels of {len(measured)} of {len(LABELS)} cases")


if __name__ == "__main__":
    typer.run(main)

# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.kernel_times [--csv FILE]``: times of each kernel of the main cases on a GPU.

Times are measured by torch's profiler; each call uses the next copy of the inputs. The row "(the call)" is the time of
a whole call, from the first kernel's start to the last one's end. The time of a kernel that starts while the one before
it still runs includes its waiting, so kernel times can add up to more than the call.
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

CALLS = 20  # profiled calls, after as many warm-up calls
CALL = "(the call)"


class KernelTime(NamedTuple):
    op: str
    case: str
    kernel: str
    launches: float  # per call
    us: float  # per launch


class Event(NamedTuple):
    """One run of a kernel, a copy or a memset."""

    name: str
    start: float  # us
    end: float


def short(name: str) -> str:
    """Return a kernel's short name: scan<false> for "void specdec::(anonymous namespace)::scan<false>(Step)"."""
    found = re.search(r"(?:\(anonymous namespace\)::|\b)(\w+(?:<[^<>()]*>)?)\(", name)
    return (found[1] if found else name)[:60]


def profiled(work: Work) -> list[Event]:
    """Return all events of CALLS calls on the GPU, by start time."""
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
    """Return (kernel, launches per call, microseconds per launch), most expensive first.

    The last entry is the whole call, if the number of launches is a multiple of the number of calls.
    """
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

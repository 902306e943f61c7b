# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.kernel_times [--csv FILE] [--counters FILE]``: what each kernel of the main cases takes on a GPU.

Times are torch's profiler's, each call on the next copy of the inputs. Counters are ncu's, where it is there and may
read them: bytes from memory and L2, issue slots, stalls.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
import sys
import time
from typing import Annotated, NamedTuple

import torch
import typer

from bench import rehearsal
from bench.harness import Work, copies
from bench.main_cases import LABELS, case

CALLS = 20  # that are profiled; as many go before
LEAST = 5  # seconds that a case takes under ncu
METRICS = (
    "gpu__time_duration.sum,dram__bytes_read.sum,lts__t_sectors_op_read.sum,"
    "smsp__issue_active.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,"
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,"
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
)


class KernelTime(NamedTuple):
    op: str
    case: str
    kernel: str
    launches: float  # per call
    us: float  # each


def short(name: str) -> str:
    """judge_rows<false>, of what the profiler calls void specdec::(anonymous namespace)::judge_rows<false>(Step)"""
    found = re.search(r"(?:\(anonymous namespace\)::|\b)(\w+(?:<[^<>()]*>)?)\(", name)
    return (found[1] if found else name)[:60]


def profiled(work: Work) -> list[tuple[str, float, float]]:
    """(kernel, launches per call, microseconds each) of a case's own call, the dearest first."""
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
    total = "self_cpu_time_total" if rehearsed else "self_device_time_total"
    taken = [(short(e.key), e.count / CALLS, getattr(e, total) / e.count) for e in profile.key_averages()]
    return sorted((k for k in taken if k[2] > 0), key=lambda k: -k[1] * k[2])


def once(op: str, label: str) -> None:
    """One call between marks that ncu looks for."""
    work = case(op, label).build()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    work.ours(work.inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def counted(file: str, limit: float) -> str:
    """Leaves ncu's counters in a file; what is to be said of that."""
    if not shutil.which("ncu"):
        return "no counters: ncu is not on the PATH"
    began, done = time.monotonic(), 0
    with open(file, "w") as out:
        for op, label in LABELS:
            left = limit - (time.monotonic() - began)
            if left < LEAST:
                break
            tool = ["ncu", "--profile-from-start", "off", "--csv", "--page", "raw", "--metrics", METRICS]
            command = [*tool, sys.executable, "-m", "bench.kernel_times", "--once", op, "--label", label]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=left)
            except subprocess.TimeoutExpired:
                break
            if ran.returncode:
                last = (ran.stdout + ran.stderr).strip().splitlines()[-1:] or ["no word"]
                return f"no counters: ncu ended with {ran.returncode}: {last[0][:120]}"
            out.write(f"# {op} {label}\n" + "".join(f"{line}\n" for line in ran.stdout.splitlines() if line[:1] == '"'))
            done += 1
    return f"counters of {done} of {len(LABELS)} cases"


def main(
    csv_file: Annotated[str, typer.Option("--csv", help="write every kernel of every case")] = "",
    counters: Annotated[str, typer.Option(help="write what ncu counts")] = "",
    seconds: Annotated[float, typer.Option(help="start nothing after so many")] = 60,
    once_of: Annotated[str, typer.Option("--once", help="an op: call it once, for ncu")] = "",
    label: Annotated[str, typer.Option(help="of its case")] = "",
) -> None:
    if once_of:
        return once(once_of, label)
    began, rows = time.monotonic(), []
    for op, name in LABELS:
        if time.monotonic() - began > 0.6 * seconds and rows:
            break
        for kernel, launches, us in profiled(case(op, name).build()):
            rows.append(KernelTime(op, name, kernel, launches, us))
            print(f"{op} {name}: {kernel} {us:.1f} us" + (f" x {launches:g}" if launches != 1 else ""), flush=True)
        torch.cuda.empty_cache()
        if csv_file:
            with open(csv_file, "w", newline="") as file:
                csv.writer(file).writerows([KernelTime._fields, *rows])
    told = counted(counters, seconds - (time.monotonic() - began)) if counters else "no counters asked for"
    measured = {(row.op, row.case) for row in rows}
    print(f"{len(rows)} kernels of {len(measured)} of {len(LABELS)} cases; {told}")


if __name__ == "__main__":
    typer.run(main)

# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.counters FILE``: hardware counters of the main cases' kernels by ncu.

They are bytes from memory and L2, issue slots and stalls. If ncu is missing or may not read the counters, a line is
printed, and it does not count as a failure.

ncu neither fixes the clocks nor flushes the cache. It runs a kernel several times, so from the second time on the
kernel's rows may be in L2.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import Annotated

import torch
import typer

from bench import rehearsal
from bench.main_cases import LABELS, case

LEAST = 5  # least seconds that a case takes under ncu
METRICS = (
    "gpu__time_duration.sum,dram__bytes_read.sum,lts__t_sectors_op_read.sum,"
    "smsp__issue_active.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,"
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,"
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"
)
NCU = [
    *("ncu", "--profile-from-start", "off", "--clock-control", "none", "--cache-control", "none"),
    *("--csv", "--page", "raw", "--metrics", METRICS),
]


def once(op: str, label: str) -> None:
    """Make one call between the profiler marks that ncu looks for."""
    work = case(op, label).build()
    work.ours(work.inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    work.ours(work.inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def command(op: str, label: str) -> list[str]:
    """Return the command for a case; in a rehearsal without ncu."""
    tool, module = ([], ["bench.rehearsal"]) if rehearsal.active() else (NCU, [])
    return [*tool, sys.executable, "-m", *module, "bench.counters", "--once", op, "--label", label]


def errors(output: str) -> str:
    """Return the line with the error: ncu's own, else the last."""
    lines = output.strip().splitlines() or ["no word"]
    return next((line for line in lines if "==ERROR==" in line), lines[-1])


def counted(file: str, limit: float) -> str:
    """Write ncu's counters to a file; return a line about the result."""
    if not rehearsal.active() and not shutil.which("ncu"):
        return "no counters: ncu is not on the PATH"
    began, done = time.monotonic(), 0
    with open(file, "w") as out:
        for op, label in LABELS:
            left = limit - (time.monotonic() - began)
            if left < LEAST:
                break
            try:
                ran = subprocess.run(command(op, label), capture_output=True, text=True, timeout=left)
            except subprocess.TimeoutExpired:
                break
            if ran.returncode:
                report = f"ended with {ran.returncode}: {errors(ran.stdout + ran.stderr)[:120]}"
                if rehearsal.active():
                    sys.exit(f"{op} {label} {report}")
                return f"no counters: ncu {report}"
            table = [line for line in ran.stdout.splitlines() if line[:1] == '"']
            if not table and not rehearsal.active():
                return f"no counters: ncu read none: {errors(ran.stdout + ran.stderr)[:120]}"
            out.write("".join(f"{line}\n" for line in [f"# {op} {label}", *table]))
            out.flush()
            done += 1
    report = f"counters of {done} of {len(LABELS)} cases"
    return f"{report}; not rehearsed: ncu" if rehearsal.active() else report


def main(
    file: Annotated[str, typer.Argument(help="write what ncu counts")] = "counters.csv",
    seconds: Annotated[float, typer.Option(help="start nothing after so many")] = 120,
    once_of: Annotated[str, typer.Option("--once", help="an op: call it once, for ncu")] = "",
    label: Annotated[str, typer.Option(help="of its case")] = "",
) -> None:
    if once_of:
        return once(once_of, label)
    print(counted(file, seconds))


if __name__ == "__main__":
    typer.run(main)

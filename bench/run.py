# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: ``python -m bench.run [op ...] --device cpu|cuda [--only LABEL] [--csv FILE] [--markdown FILE]``"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import machine
from bench.harness import Case, copy_bandwidth, measure
from bench.report import HEADER, Files, Row, command, skipped
from specdec_kernels import registry

# The benchmarks of an op are in the file of its name. The most important op comes first, in case time runs out.
OPS = sorted((*registry.OPS, "rules"), key=lambda op: op != "verify_chain")

UNFINISHED = 75  # exit status (EX_TEMPFAIL) of a run that another call can resume

READING_GPU = """\
time: replay of a CUDA graph, calls through copies of the inputs that together exceed the cache, if at most 512 do
(inputs of small cases stay in the cache); as called: the same calls from Python, launches included. Bytes: what the
step must read at this run's stops. A peer's ratio compares replays where both could be captured, else calls."""


def as_table(op: str, rows: list[Row]) -> Table:
    """Return a table of the rows, without columns that are empty in every row."""
    columns = [(name, cells) for name, *cells in zip(HEADER, *(row.cells() for row in rows)) if any(cells)]
    table = Table(*(name for name, _ in columns), title=op, title_justify="left")
    for cells in zip(*(cells for _, cells in columns)):
        table.add_row(*map(escape, cells))
    return table


def check(ops: list[str], device: str) -> None:
    for op in ops:
        if op not in OPS:
            raise typer.BadParameter(f"op must be one of {', '.join(OPS)}, got {op}")
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device must be cpu or cuda, got {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("device is cuda, but torch sees no GPU")


@dataclass
class Run:
    """A run over cases, which are printed and written as they finish."""

    device: str
    only: str
    peers: Callable[[str], bool]
    rounds: int
    budget: float
    files: Files
    console: Console
    copy: float  # GB/s
    began: float = field(default_factory=time.perf_counter)
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)

    def op(self, op: str, last: bool) -> None:
        """Measure the cases of an op: those with `last` set, or the others."""
        cases = [case for case in importlib.import_module(f"bench.{op}").cases(self.device) if case.last == last]
        cases = [case for case in cases if self.only in ("", case.label) and (op, case.label) not in self.files.done]
        if not cases:
            return
        self.files.op(op)
        measured = [row for i, case in enumerate(cases, 1) for row in self.case(op, case, f"{i} of {len(cases)}")]
        if measured:
            self.console.print(as_table(op, measured))
        for line in skipped(measured):
            self.note(line, highlight=False)
        self.rows += measured

    def case(self, op: str, case: Case, place: str) -> Iterator[Row]:
        """Measure a case, and yield its row if there was time and no error. place: its place among the op's cases."""
        if time.perf_counter() - self.began > self.budget:
            self.late.append(f"{op} {case.label}")
            return
        print(f"{place}: {command(op, case.label, self.device)}", file=sys.stderr)
        try:
            row = Row(op, case.label, self.device, measure(case, self.device, self.rounds, self.peers), self.copy)
        except Exception as error:  # the other cases still count
            self.failed.append(f"{op} {case.label}: {type(error).__name__}: {error}")
            return
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()
        self.files.row(row)
        yield row

    def end(self) -> None:
        """Print how to repeat a row, and notes about the whole run."""
        if len(self.rows) == 1:
            self.console.print(self.rows[0].command, markup=False)
        else:
            self.console.print(f"One row again: python -m bench.run OP --device {self.device} --only 'CASE'")
        if self.device == "cuda":
            self.note(READING_GPU)
            state = ", ".join(f"{k} {v}" for k, v in machine.gpu_state().items())
            self.note(f"After the run: copy {copy_bandwidth(self.device):.1f} GB/s; {state}")
        if self.late:
            self.note(f"Not measured within {self.budget:g} s: {'; '.join(self.late)}")
        for line in self.failed:
            self.note("FAILED " + line)
        counts = len(self.files.done), len(self.rows), len(self.late), len(self.failed)
        self.console.print("cases: {} kept, {} measured, {} out of time, {} failed".format(*counts), highlight=False)

    def status(self, resume: bool) -> int:
        if self.failed or not (self.rows or self.files.done):
            return 1
        return UNFINISHED if resume and self.late else 0

    def note(self, text: str, highlight: bool | None = None) -> None:
        self.console.print(text, markup=False, highlight=highlight)
        self.files.note(text)


def main(
    ops: Annotated[list[str] | None, typer.Argument(help=f"any of {', '.join(OPS)}; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    only: Annotated[str, typer.Option(help="the case of exactly this label")] = "",
    peers: Annotated[str, typer.Option(help="all, none, or names, separated by commas")] = "all",
    csv_file: Annotated[str, typer.Option("--csv", help="write every row, with the command that repeats it")] = "",
    markdown: Annotated[str, typer.Option(help="write the tables as Markdown")] = "",
    rounds: Annotated[int, typer.Option(help="interleaved rounds; medians are printed")] = 9,
    budget: Annotated[float, typer.Option(help="start no case after so many seconds")] = float("inf"),
    resume: Annotated[
        bool, typer.Option(help="keep the CSV file's rows of this commit and GPU; 75: there is more")
    ] = False,
) -> None:
    began = time.perf_counter()
    check(ops or [], device)
    chosen = {"all": lambda name: True, "none": lambda name: False}.get(peers, lambda name: name in peers.split(","))
    console = Console(width=200)
    about = machine.describe(device)
    copy = copy_bandwidth(device)
    about["copy"] = f"{copy:.1f} GB/s"
    console.print("\n".join(f"{key}: {value}" for key, value in about.items()), highlight=False, markup=False)
    files = Files(csv_file, markdown, about, resume)
    run = Run(device, only, chosen, rounds, budget, files, console, copy, began)
    for last in (False, True):
        for op in ops or OPS:
            run.op(op, last)
    run.end()
    if status := run.status(resume):
        raise typer.Exit(status)


if __name__ == "__main__":
    typer.run(main)

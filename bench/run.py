# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.run [op ...] --device cpu|cuda [--only LABEL] [--csv FILE] [--markdown FILE]``"""

from __future__ import annotations

import importlib
import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import machine
from bench.harness import copy_bandwidth, measure
from bench.report import HEADER, Files, Row, skipped

OPS = (
    "verify_chain",
    "row_stats",
    "sample",
    "residual",
    "kseq_rho",
    "row_gap",
    "rules",
    "accept",
    "uniforms",
    "build_tree",
    "tree_mask",
    "verify_tree",
)

READING_GPU = """\
time: replay of a CUDA graph, calls through copies of the inputs that together exceed the cache; as called: the same calls from
Python, launches included. Bytes: what the step must read at this run's stops. A peer's ratio compares replays where both
could be captured, else calls."""


def as_table(op: str, rows: list[Row]) -> Table:
    """Without the columns that are empty in every row."""
    columns = [(name, cells) for name, *cells in zip(HEADER, *(row.cells() for row in rows)) if any(cells)]
    table = Table(*(name for name, _ in columns), title=op, title_justify="left")
    for cells in zip(*(cells for _, cells in columns)):
        table.add_row(*map(escape, cells))
    return table


def main(
    ops: Annotated[list[str] | None, typer.Argument(help=f"any of {', '.join(OPS)}; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    only: Annotated[str, typer.Option(help="the case of exactly this label")] = "",
    peers: Annotated[str, typer.Option(help="all, none, or names, separated by commas")] = "all",
    csv_file: Annotated[str, typer.Option("--csv", help="write every row, with the command that repeats it")] = "",
    markdown: Annotated[str, typer.Option(help="write the tables as Markdown")] = "",
    rounds: Annotated[int, typer.Option(help="interleaved rounds; medians are printed")] = 9,
    budget: Annotated[float, typer.Option(help="start no case after so many seconds")] = float("inf"),
) -> None:
    began = time.perf_counter()
    console = Console(width=200)
    for op in ops or ():
        if op not in OPS:
            raise typer.BadParameter(f"op must be one of {', '.join(OPS)}, got {op}")
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"device must be cpu or cuda, got {device}")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("device is cuda, but torch sees no GPU")

    chosen = {"all": lambda name: True, "none": lambda name: False}.get(peers, lambda name: name in peers.split(","))
    about = machine.describe(device)
    copy = copy_bandwidth(device)
    about["copy"] = f"{copy:.1f} GB/s"
    console.print("\n".join(f"{key}: {value}" for key, value in about.items()), highlight=False, markup=False)
    files = Files(csv_file, markdown, about)
    rows, failed, late = [], [], []
    for op in ops or OPS:
        files.op(op)
        measured = []
        for case in importlib.import_module(f"bench.{op}").cases(device):
            if only and case.label != only:
                continue
            if time.perf_counter() - began > budget:
                late.append(f"{op} {case.label}")
                continue
            try:
                row = Row(op, case.label, device, measure(case, device, rounds, chosen), copy)
            except Exception as error:  # the other cases still count
                failed.append(f"{op} {case.label}: {type(error).__name__}: {error}")
                continue
            finally:
                if device == "cuda":
                    torch.cuda.empty_cache()
            measured.append(row)
            files.row(row)
        if measured:
            console.print(as_table(op, measured))
        for line in skipped(measured):
            console.print(line, markup=False, highlight=False)
            files.note(line)
        rows += measured
    if len(rows) == 1:
        console.print(rows[0].command, markup=False)
    else:
        console.print("One row again: python -m bench.run OP --device " + device + " --only 'CASE'")
    notes = [READING_GPU] if device == "cuda" else []
    if device == "cuda":
        after = machine.gpu_state()
        notes.append(
            f"After the run: copy {copy_bandwidth(device):.1f} GB/s; " + ", ".join(f"{k} {v}" for k, v in after.items())
        )
    if late:
        notes.append(f"Not measured within {budget:g} s: {'; '.join(late)}")
    for note in notes:
        console.print(note, markup=False)
        files.note(note)
    for line in failed:
        console.print("FAILED " + line, markup=False)
        files.note("FAILED " + line)
    if failed or not rows:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

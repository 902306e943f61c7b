# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.run [op ...] --device cpu|cuda [--only LABEL] [--csv FILE]``"""

from __future__ import annotations

import csv
import importlib
import shlex
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

import specdec_kernels as sk
from bench.harness import copy_bandwidth, measure

OPS = ("verify_chain", "row_stats", "sample", "residual", "accept", "uniforms")


def command(op: str, label: str, device: str) -> str:
    return f"python -m bench.run {op} --device {device} --only {shlex.quote(label)}"


def main(
    ops: Annotated[list[str] | None, typer.Argument(help=f"any of {', '.join(OPS)}; all by default")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    only: Annotated[str, typer.Option(help="the case of exactly this label")] = "",
    csv_file: Annotated[str, typer.Option("--csv", help="write every row, with the command that repeats it")] = "",
    rounds: Annotated[int, typer.Option(help="interleaved rounds; medians are printed")] = 9,
) -> None:
    console = Console(width=170)
    for op in ops or ():
        if op not in OPS:
            raise typer.BadParameter(f"op must be one of {', '.join(OPS)}, got {op}")
    copy = copy_bandwidth(device)
    chip = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads, {sk.backends.cpu_isa()}"
    console.print(f"specdec_kernels {sk.__version__}, torch {torch.__version__}, {device} ({chip}); copy {copy:.1f} GB/s")
    rows = []
    for op in ops or OPS:
        table = Table("case", "time", "GB/s", "% of copy", "times as long: each peer", title=op, title_justify="left")
        for case in importlib.import_module(f"bench.{op}").cases(device):
            if only and case.label != only:
                continue
            result = measure(case, device, rounds)
            t = result.seconds["ours"]
            table.add_row(
                case.label,
                f"{t * 1e3:.3f} ms" if t >= 1e-4 else f"{t * 1e6:.1f} us",
                f"{result.gb_per_s:.1f}" if result.bytes else "",
                f"{100 * result.gb_per_s / copy:.0f}" if result.bytes else "",
                "  ".join(f"{peer} {ratio:.2f}x" for peer, ratio in result.ratios.items()),
            )
            rows.append((op, case.label, device, t, result.bytes, result.gb_per_s, copy, result.ratios, command(op, case.label, device)))
        console.print(table)
    if len(rows) == 1:
        console.print(rows[0][-1])
    else:
        console.print("One row again: python -m bench.run OP --device " + device + " --only 'CASE'")
    if csv_file:
        with open(csv_file, "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["op", "case", "device", "seconds", "bytes", "GB/s", "copy GB/s", "times as long", "command"])
            writer.writerows(rows)


if __name__ == "__main__":
    typer.run(main)

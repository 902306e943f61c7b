# SPDX-License-Identifier: Apache-2.0
"""Output of measured cases as rows: on the console, in a CSV file, in a Markdown table."""

from __future__ import annotations

import csv
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Result

HEADER = ["case", "time", "as called", "GB/s", "% of copy", "% with second read", "tokens", "times as long: each peer"]
CSV_HEADER = [
    *(
        "op",
        "case",
        "device",
        "timed",
        "seconds",
        "spread",
        "seconds as called",
        "bytes",
        "second read",
        "GB/s",
        "GB/s with second read",
    ),
    *("copy GB/s", "outcome", "times as long", "peer seconds as called", "skipped", "command"),
]


def duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} us"


def command(op: str, label: str, device: str) -> str:
    """Return the command that measures a case again."""
    return f"python -m bench.run {op} --device {device} --only {shlex.quote(label)}"


@dataclass
class Row:
    op: str
    label: str
    device: str
    result: Result
    copy: float  # GB/s

    @property
    def command(self) -> str:
        return command(self.op, self.label, self.device)

    def cells(self) -> list[str]:
        r = self.result
        share = [f"{r.gb_per_s:.1f}", f"{100 * r.gb_per_s / self.copy:.0f}"] if r.bytes else ["", ""]
        again = f"{100 * r.gb_per_s_with_second_read / self.copy:.0f}" if r.second_read else ""
        called = duration(r.seconds["call"]["ours"]) if r.way != "call" else ""
        tokens = f"{r.outcome['ours']:.2f}" if "ours" in r.outcome else ""
        peers = [f"{name} {ratio:.2f}x" for name, ratio in r.ratios.items()] + [f"{name} -" for name in r.skipped]
        return [self.label, duration(r.ours), called, *share, again, tokens, "  ".join(peers)]

    def csv(self) -> list[object]:
        r = self.result
        numbers = [
            r.ours,
            round(r.spread, 4),
            r.seconds["call"]["ours"],
            r.bytes,
            r.second_read,
            r.gb_per_s,
            r.gb_per_s_with_second_read,
        ]
        details = [r.outcome, r.ratios, r.seconds["call"], r.skipped]
        return [self.op, self.label, self.device, r.way, *numbers, self.copy, *map(json.dumps, details), self.command]


def skipped(rows: list[Row]) -> list[str]:
    """Return one line per skipped peer and reason, with the cases concerned."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for why in row.result.skipped.items():
            reasons.setdefault(why, []).append(row.label)
    return [
        f"{name} -: {why}" + ("" if len(labels) == len(rows) else f" ({'; '.join(labels)})")
        for (name, why), labels in reasons.items()
    ]


def measured(csv_file: Path, about: dict[str, str]) -> set[tuple[str, str]]:
    """Return (op, case) of the rows in a CSV file, if it is of the same commit, without changes, and GPU."""
    if not csv_file.exists() or about["commit"].endswith("+") or about["commit"] == "unknown":
        return set()
    lines = csv_file.read_text().splitlines()
    if not all(f"# {name}: {about[name]}" in lines for name in ("commit", "GPU") if name in about):
        return set()
    return {(row["op"], row["case"]) for row in csv.DictReader(line for line in lines if not line.startswith("#"))}


class Files:
    """The CSV and Markdown files of a run. Rows are written at once, so an interrupted run keeps its measurements.

    resume: keep rows of the same commit and GPU, listed in `done`.
    """

    def __init__(self, csv_file: str, markdown_file: str, about: dict[str, str], resume: bool = False) -> None:
        self.csv_file, self.markdown_file = (Path(f) if f else None for f in (csv_file, markdown_file))
        self.done = measured(self.csv_file, about) if resume and self.csv_file else set()
        if self.done:
            return
        if self.csv_file:
            self.csv_file.write_text("".join(f"# {key}: {value}\n" for key, value in about.items()))
            self._line(CSV_HEADER)
        if self.markdown_file:
            self.markdown_file.write_text("".join(f"- {key}: {value}\n" for key, value in about.items()))

    def _line(self, values: list[object]) -> None:
        with open(self.csv_file, "a", newline="") as f:
            csv.writer(f).writerow(values)

    def _append(self, text: str) -> None:
        if self.markdown_file:
            with open(self.markdown_file, "a") as f:
                f.write(text)

    def op(self, name: str) -> None:
        self._append(f"\n## {name}\n\n| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|\n")

    def row(self, row: Row) -> None:
        if self.csv_file:
            self._line(row.csv())
        self._append(f"| {' | '.join(row.cells())} |\n")

    def note(self, text: str) -> None:
        self._append(f"\n{text}\n")

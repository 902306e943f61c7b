# SPDX-License-Identifier: Apache-2.0
"""Comparison of bench.run's measurements on a GPU with the model's predictions.

Only rows that were timed as replays of a CUDA graph, on a GPU that the model has, are compared. Each call is then one
of many in a graph. So its prediction has the gap after the call before, in place of a first launch and a last event.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.gpu_model import calls, walks
from tools.gpu_model.calls import Setting
from tools.gpu_model.predict import Model
from tools.machine_code.gpus import GPUS, Band

G, ACCEPTED = 5, 0.7  # drafts of a request, and the share accepted, of bench/verify_chain.py

Us = Callable[[Setting], float]


@dataclass(frozen=True)
class Results:
    """A bench.csv: the facts in its first lines, and its rows."""

    about: dict[str, str]
    rows: list[dict[str, str]]

    @property
    def gpu(self) -> str | None:
        """Return the GPU's name in GPUS; None if there was no GPU, or one that the model does not have."""
        return next((name for name in GPUS if name in self.about.get("GPU", "")), None)


def read(path: Path) -> Results:
    path = path / "bench.csv" if path.is_dir() else path
    lines = path.read_text().splitlines()
    comments = [line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line]
    return Results(dict(comments), list(csv.DictReader(line for line in lines if not line.startswith("#"))))


def known(op: str, label: str) -> Us | None:
    """Return a function that predicts a benchmark case; None if it is not modelled. Only plain bf16 rows are."""
    if op == "verify_chain":
        m = re.fullmatch(r"B=(\d+) V=(\d+) bf16( stats| one-hot)?(?: T=[\d.]+)?( all accepted)?", label)
        if m and int(m[2]) > calls.CHUNK:
            B, V, alpha = int(m[1]), int(m[2]), 1.0 if m[4] else ACCEPTED
            how = {"stats": m[3] == " stats", "one_hot": m[3] == " one-hot"}
            return lambda s: calls.verify_chain(s, B, G, V, alpha=alpha, **how)[0]
    if m := re.fullmatch(r"N=(\d+) V=(\d+) bf16( k=1| k=4)?", label):
        N, V = int(m[1]), int(m[2])
        if op == "row_stats" and not m[3]:
            return lambda s: calls.row_stats(s, N, V)
        if op == "sample" and m[3] == " k=1":
            return lambda s: calls.sample(s, N, V)
        if op == "kseq_rho" and m[3] == " k=4":
            return lambda s: walks.walk(s, N, V, walks.KSEQ, walks.blocks_of(s, N))
    return None


@dataclass(frozen=True)
class Line:
    op: str
    label: str
    us: Band
    measured: float  # microseconds

    @property
    def verdict(self) -> str:
        kind, _, hard = self.us
        return "in the band" if kind <= self.measured <= hard else "FASTER" if self.measured < kind else "SLOWER"

    def __str__(self) -> str:
        kind, middle, hard = self.us
        return (
            f"{self.op + ' ' + self.label:52s} {kind:8.1f} -{middle:8.1f} -{hard:8.1f} {self.measured:10.1f} "
            f"{self.measured / middle:8.2f}  {self.verdict}"
        )


def lines(model: Model, rows: Iterable[dict[str, str]]) -> Iterator[Line]:
    for row in rows:
        us = known(row["op"], row["case"])
        if us and row["device"] == "cuda" and row["timed"] == "graph":
            yield Line(row["op"], row["case"], model.in_a_graph(us), float(row["seconds"]) * 1e6)


def report(results: Results, model_of: Callable[[str], Model]) -> Iterator[str]:
    if results.gpu is None:
        yield (
            f"Nothing was measured on a GPU that the model has ({', '.join(GPUS)}): these results are of "
            f"{results.about.get('GPU', 'no GPU')}. No prediction is set beside them."
        )
        return
    yield (
        f"{results.about['GPU']}, commit {results.about.get('commit', 'unknown')}: microseconds predicted (kind, "
        "middle, hard) and measured"
    )
    found = list(lines(model_of(results.gpu), results.rows))
    if found:
        yield f"{'case':52s} {'kind':>8s}  {'middle':>8s}  {'hard':>8s} {'measured':>10s} {'/ middle':>8s}"
    yield from map(str, found)
    inside = sum(line.verdict == "in the band" for line in found)
    yield f"{inside} of {len(found)} in the band; {len(results.rows) - len(found)} cases are not in the model"

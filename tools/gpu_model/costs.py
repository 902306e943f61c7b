# SPDX-License-Identifier: Apache-2.0
"""The costs of loops and tails that predictions use, taken from the kernels' machine code.

A loop is found by its kernel's name, its number of rows and, for some, its MUFU or F2F64 instructions. Of several, that
with the fewest instructions per 16 bytes is taken.

`scan` and `pair` are per chunk of 1,024 bf16 entries, 2 KB per row; a Pass is per iteration of a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tools.gpu_model.tails import SEARCH
from tools.machine_code.gpus import Band
from tools.machine_code.loops import of_two_bytes


class Pass(NamedTuple):
    """The cost of one iteration of one thread in a block's pass over a pair of rows."""

    bytes: int  # of both rows
    instructions: float
    entries: int  # of each row
    waits: int  # memory latencies, one after another


class Tail(NamedTuple):
    """The longest path of a tail, as counted by tails.py."""

    instructions: int
    clocks: Band
    lines: int = 0  # lines of code, of 128 bytes


@dataclass
class Costs:
    scan: float = 320  # a warp's instructions for a chunk of one row
    scan_slots: int = 4  # blocks an SM
    scan_waits: int = 1
    pair: float = 1200  # a warp's instructions for a chunk of a pair of rows
    pair_slots: int = 3
    pair_waits: int = 4
    sample_slots: int = 3
    walk: dict[str, Pass] = field(default_factory=lambda: _walks([]))
    tails: dict[str, Tail] = field(default_factory=dict)  # "judge report": what a block runs around its loop


OTHERWISE = {  # for a library without the kernel; "kept" for all
    "search": Pass(64, 400, 16, 2),
    "unders": Pass(64, 676, 16, 2),  # sums of (p - t q)+ for several t (`under` in csrc/core/bracket.h)
    "kept": Pass(128, 213, 16, 1),  # as "unders", on weights in shared memory: counted in kseq_rho::search of sm_90
}
PER_CHUNK = {1: 20, 2: 40}  # rows -> instructions per chunk outside the loop: indices, a warp's reduction, two stores
OTHER_LAUNCHES = ("requests::", "rule", "tree", "positions")  # kernels other than judge_rows and finish_requests

Wanted = Callable[[dict, dict], bool]


def costs_of(kernels: list[dict]) -> Costs:
    plain = lambda k: not any(word in k["name"] for word in OTHER_LAUNCHES)
    scan = _cheapest(kernels, 1, lambda k, x: plain(k) and (x["counts"]["MUFU"] >= 32 or x["per16"] < 60))
    pair = _cheapest(kernels, 2, lambda k, x: plain(k))
    costs = Costs(walk=_walks(kernels))
    if scan:
        k, loop = scan
        costs = replace(costs, scan=_chunk(loop), scan_slots=k["resident"], scan_waits=_waits(loop))
    if pair:
        k, loop = pair
        costs = replace(costs, pair=_chunk(loop), pair_slots=k["resident"], pair_waits=_waits(loop))
    own = lambda op: _cheapest(kernels, 1, lambda k, x: x["counts"]["MUFU"] >= 32, op + "::")
    # Named after kernels: judge_rows has the loop `scan`, and "scan" is scan_positions, of small batches.
    found = {"judge": scan, "finish": pair, "row_stats": own("row_stats"), "sample": own("sample")}
    found["scan"] = _cheapest(kernels, 1, lambda k, x: x["counts"]["MUFU"] >= 32, "verify_chain::scan_positions")
    found["verify"] = _cheapest(kernels, 2, lambda k, x: True, "verify_chain::verify_positions")
    if found["sample"]:
        costs = replace(costs, sample_slots=found["sample"][0]["resident"])
    for name, (_, loop) in ((name, where) for name, where in found.items() if where):
        for part, tail in loop.get("tails", {}).items():
            costs.tails[f"{name} {part}"] = _tail(tail)
    for k in kernels:
        for part, tail in k.get("turns", {}).items():
            costs.tails[f"search {part}"] = _tail(tail)
    return costs


def _tail(found: dict) -> Tail:
    return Tail(found["instr"], tuple(found["clocks"]), found.get("lines", 0))


def _cheapest(kernels: list[dict], rows: int, wanted: Wanted, op: str = "verify_chain") -> tuple[dict, dict] | None:
    some = [
        (k, x)
        for k in kernels
        if op in k["name"] and "<true>" not in k["name"]
        for x in k["loops"]
        if of_two_bytes(x) and x["rows"] == rows and wanted(k, x)
    ]
    return min(some, key=lambda found: found[1]["per16"], default=None)


def _chunk(loop: dict) -> float:
    """Return a warp's instructions for 1,024 entries of each row."""
    return loop["per16"] * 4 * loop["rows"] + PER_CHUNK[loop["rows"]]


def _waits(loop: dict) -> int:
    """Return the memory latencies, one after another, for one chunk: iterations times batches of loads."""
    return max(1, round(2048 * loop["rows"] / (32 * loop["bytes"])) * loop["batches"])


def _walks(kernels: list[dict]) -> dict[str, Pass]:
    """Return the passes of kseq_rho. The loop of "unders" is that of verify_tree, which reads both rows too."""

    def first(kernel: str, name: str, wanted: Callable[[int], bool]) -> Pass:
        loops = [x for k in kernels if kernel in k["name"] for x in k["loops"] if x["rows"] == 2]
        fit = next((x for x in loops if wanted(x["counts"].get("F2F64", 0))), None)
        return Pass(fit["bytes"], fit["instr"], fit["bytes"] // 4, fit["batches"]) if fit else OTHERWISE[name]

    search = first(SEARCH, "search", lambda doubles: doubles >= 32)
    unders = first("verify_tree", "unders", lambda doubles: 0 < doubles < 32)
    return {"search": search, "kept": OTHERWISE["kept"], "unders": unders}

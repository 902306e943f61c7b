# SPDX-License-Identifier: Apache-2.0
"""What the hot loops of the kernels may cost, as counted in their machine code, and what they are to cost.

A limit is what a loop costs at present: it can be lowered, never raised without a reason beside it. A target is where
the loop's instructions no longer stand in the way of the memory's bandwidth (docs/model.md derives them).
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    per16: float  # warp instructions per 16 bytes that a thread loads
    bssy: int  # what threads may diverge at
    lds: int  # loads of parameters from shared memory, an iteration
    bra: int
    waits: int  # memory latencies in turn


class Loop(NamedTuple):
    kernel: str
    rows: int
    resident: int  # blocks an SM, at least
    target: Limit
    before_sm_100: Limit
    from_sm_100: Limit


ONE_ROW, TWO_ROWS = Limit(60, 0, 0, 3, 1), Limit(78, 0, 0, 3, 1)
MAIN_BYTES = 64  # a thread's trip of a loop that sweeps whole rows; a draw's rescan of one chunk takes less

LOOPS = [
    Loop("row_stats::scan<false>", 1, 4, ONE_ROW, Limit(71, 4, 0, 13, 1), Limit(69, 3, 0, 9, 1)),
    Loop("sample::draws<false>", 1, 3, ONE_ROW, Limit(69, 4, 0, 13, 1), Limit(68, 3, 0, 9, 1)),
    Loop("verify_chain::judge_rows<false>", 1, 4, ONE_ROW, Limit(66, 3, 0, 12, 1), Limit(66, 3, 0, 9, 1)),
    Loop("verify_chain::finish_requests", 2, 3, TWO_ROWS, Limit(168, 20, 54, 77, 2), Limit(108, 3, 8, 29, 2)),
]
KERNELS = "^(" + "|".join(loop.kernel for loop in LOOPS) + ")$"  # for kernels.analyse


def _cost(loop: dict) -> Limit:
    counts = loop["counts"]
    return Limit(loop["per16"], *(counts.get(name, 0) for name in ("BSSY", "LDS", "BRA")), loop["batches"])


def hot(kernel: dict, rows: int) -> list[dict]:
    return [x for x in kernel["loops"] if x["rows"] == rows and x["bytes"] >= MAIN_BYTES and x["kind"] == "loop"]


def broken(kernels: list[dict], arch: str, loops: list[Loop] = LOOPS) -> list[str]:
    """What is wrong, in words. A loop that is not found is wrong too: its limit would hold for nothing."""
    problems = []
    for loop in loops:
        limit = loop.from_sm_100 if int(arch[3:]) >= 100 else loop.before_sm_100
        kernel = next((k for k in kernels if k["name"] == loop.kernel), None)
        found = hot(kernel, loop.rows) if kernel else []
        if not found:
            problems.append(f"{loop.kernel} {arch}: no loop over {loop.rows} row{'s' * (loop.rows > 1)} was found")
            continue
        if kernel["resident"] < loop.resident:
            problems.append(f"{loop.kernel} {arch}: {kernel['resident']} blocks fit an SM, {loop.resident} did")
        for x in found:
            problems += [
                f"{loop.kernel} {arch} at {x['at']}: {name} {value}, at most {most}"
                for name, value, most in zip(Limit._fields, _cost(x), limit)
                if value > most
            ]
    return problems


def write(kernels: list[dict], arch: str, loops: list[Loop] = LOOPS) -> str:
    """Each loop as it is, beside its limit and its target."""
    shown = lambda x: f"per16 {x.per16:g} bssy {x.bssy} lds {x.lds} bra {x.bra} waits {x.waits}"
    lines = []
    for loop in loops:
        limit = loop.from_sm_100 if int(arch[3:]) >= 100 else loop.before_sm_100
        for kernel in (k for k in kernels if k["name"] == loop.kernel):
            for x in hot(kernel, loop.rows):
                where = f"{arch} {loop.kernel} at {x['at']}, {loop.rows} row{'s' * (loop.rows > 1)}"
                lines.append(f"{where}: {shown(_cost(x))}; at most {shown(limit)}; target {shown(loop.target)}")
    return "\n".join(lines)

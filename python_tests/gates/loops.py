# SPDX-License-Identifier: Apache-2.0
"""Limits and targets for the cost of the kernels' hot loops, as counted in their machine code.

A limit is what a loop costs at present. It can be lowered, but not raised without a reason beside it. At the target,
memory bandwidth and not instructions would limit the loop (tools/gpu_model/README.md derives the targets).
"""

from __future__ import annotations

from typing import NamedTuple

from tools.machine_code.loops import of_two_bytes


class Limit(NamedTuple):
    per16: float  # warp instructions per 16 bytes that a thread loads
    bssy: int  # BSSY: points from which threads may diverge
    lds: int  # loads of parameters from shared memory per iteration
    bra: int
    waits: int  # memory latencies, one after another


class Loop(NamedTuple):
    kernel: str
    rows: int
    resident: int  # blocks per SM, at least
    target: Limit
    before_sm_100: Limit
    from_sm_100: Limit
    rest: Limit  # of the loop over all else: tails, unaligned rows, mixed dtypes
    copies: int = 2  # number of loops that must keep the limit: one for bfloat16, one for float16


# Loops over a pair look up in shared memory, once per chunk, whether the chunk is special
# (csrc/cuda/special_chunks.cuh).
ONE_ROW, TWO_ROWS = Limit(60, 0, 0, 3, 1), Limit(54, 0, 1, 3, 1)
# The loop over the rest of a pair reads its parameters from shared memory: 13 loads, 16 in verify_positions from sm_100
# on. 3 of them find out whether a view (penalties, a bias, a mask) changes the row, and 4 request both rows at once.
REST, PAIR_REST = Limit(80, 4, 0, 13, 1), Limit(106, 6, 16, 19, 2)
MAIN_BYTES = 64  # bytes per thread in an iteration of a loop over whole rows; a draw's rescan of one chunk has less

LOOPS = [
    Loop("row_stats::scan<false>", 1, 4, ONE_ROW, Limit(60, 2, 0, 8, 1), Limit(60, 1, 0, 5, 1), REST),
    Loop("sample::draws<false>", 1, 2, ONE_ROW, Limit(60, 2, 0, 8, 1), Limit(60, 1, 0, 5, 1), REST),
    Loop("verify_chain::judge_rows<false>", 1, 4, ONE_ROW, Limit(60, 2, 0, 8, 1), Limit(60, 1, 0, 5, 1), REST),
    Loop("verify_chain::scan_positions", 1, 4, ONE_ROW, Limit(60, 2, 0, 8, 1), Limit(60, 1, 0, 5, 1), REST),
    Loop("verify_chain::verify_positions", 2, 2, TWO_ROWS, Limit(54, 2, 1, 7, 2), Limit(54, 1, 1, 5, 2), PAIR_REST),
    Loop("verify_chain::finish_requests", 2, 3, TWO_ROWS, Limit(54, 2, 1, 7, 2), Limit(54, 1, 1, 5, 2), PAIR_REST),
]
KERNELS = "^(" + "|".join(loop.kernel for loop in LOOPS) + ")$"  # the argument of kernels.analyse


def _cost(loop: dict) -> Limit:
    counts = loop["counts"]
    return Limit(loop["per16"], *(counts.get(name, 0) for name in ("BSSY", "LDS", "BRA")), loop["batches"])


def hot(kernel: dict, rows: int) -> list[dict]:
    """Return the loops over 2-byte entries with one exponential per entry, the cheapest first."""
    found = [x for x in kernel["loops"] if x["rows"] == rows and x["bytes"] >= MAIN_BYTES and x["kind"] == "loop"]
    return sorted(filter(of_two_bytes, found), key=_cost)


def broken(kernels: list[dict], arch: str, loops: list[Loop] = LOOPS) -> list[str]:
    """Return the violated limits, in words. A loop that is not found counts as a violation."""
    problems = []
    for loop in loops:
        limit = loop.from_sm_100 if int(arch[3:]) >= 100 else loop.before_sm_100
        kernel = next((k for k in kernels if k["name"] == loop.kernel), None)
        found = hot(kernel, loop.rows) if kernel else []
        if len(found) < loop.copies:
            many = f"{len(found)} of {loop.copies} loops" if found else "no loop"
            problems.append(f"{loop.kernel} {arch}: {many} over {loop.rows} row{'s' * (loop.rows > 1)} found")
            continue
        if kernel["resident"] < loop.resident:
            problems.append(f"{loop.kernel} {arch}: {kernel['resident']} blocks fit an SM, {loop.resident} did")
        limits = [limit] * loop.copies + [loop.rest] * len(found)
        for x, most_of in zip(found, limits):
            problems += [
                f"{loop.kernel} {arch} at {x['at']}: {name} {value}, at most {most}"
                for name, value, most in zip(Limit._fields, _cost(x), most_of)
                if value > most
            ]
    return problems


def write(kernels: list[dict], arch: str, loops: list[Loop] = LOOPS) -> str:
    """Return the table of each loop with its limit and its target."""
    shown = lambda x: f"per16 {x.per16:g} bssy {x.bssy} lds {x.lds} bra {x.bra} waits {x.waits}"
    lines = []
    for loop in loops:
        limit = loop.from_sm_100 if int(arch[3:]) >= 100 else loop.before_sm_100
        for kernel in (k for k in kernels if k["name"] == loop.kernel):
            for x in hot(kernel, loop.rows)[: loop.copies]:
                where = f"{arch} {loop.kernel} at {x['at']}, {loop.rows} row{'s' * (loop.rows > 1)}"
                lines.append(f"{where}: {shown(_cost(x))}; at most {shown(limit)}; target {shown(loop.target)}")
    return "\n".join(lines)

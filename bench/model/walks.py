# SPDX-License-Identifier: Apache-2.0
"""Requests that one block, or a few, walk by passes over V one after another: trees, K-SEQ, rules.

Warps are in lock step: a trip is so many memory latencies, then its instructions, two warps to a scheduler. The clocks
of one-thread work in between are assumed, in one number for the whole walk.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from bench.model.calls import WARPS, Setting

REDUCTION = 1400  # clocks of a block's reduction behind each pass: assumed


class Walk(NamedTuple):
    passes: list[tuple[str, bool]]  # of costs.walk, and whether its rows come from memory and not from L2
    serial: float  # clocks of one-thread work in all: assumed
    launches: int
    note: str


def sweep(s: Setting, V: int, kind: str, cold: bool, width: int, busy: int) -> float:
    """Microseconds of one pass by `width` blocks, while `busy` requests do the same."""
    c, trip = s.c, s.costs.walk[kind]
    trips = math.ceil(V / (trip.entries * 32) / (WARPS * width))
    latency = c["dram_lat"] if cold else c["l2_lat"]
    work = max(trip.instructions * c["cpi"], trip.instructions * 2 / c["issue"])
    clocks = trips * (trip.waits * latency + work)
    moved = V / trip.entries * trip.bytes
    return max(clocks, moved * busy / c["bpc"] if cold else 0) / c["clk"] * 1e6


def walk(s: Setting, B: int, V: int, what: Walk, width: int = 1) -> float:
    """Microseconds; with more than one block a request each pass ends in two barriers of the cluster besides."""
    c, sms = s.c, int(s.c["sms"])
    rounds, busy = math.ceil(B * width / sms), min(B, sms // width)
    between = (REDUCTION + (c["cluster"] * 2 if width > 1 else 0)) / c["clk"] * 1e6
    each = 0.0
    for kind, cold in what.passes:
        each += sweep(s, V, kind, cold, width, busy) + between
    return c["first_us"] + c["gap_us"] * (what.launches - 1) + rounds * (each + what.serial / c["clk"] * 1e6)


SCANS = [("scan", True)] * 2  # the laws of p and of q
CALLS = {
    "verify_tree recursive, K=3, root rejected": Walk(
        [*SCANS, ("sum1", False), ("sum2", False), ("sum3", False)], 30_000, 1, "B=1"
    ),
    "verify_tree kseq, K=3, root rejected": Walk(
        [*SCANS, ("masses", False), *[("unders", False)] * 4, ("sum1", False)], 40_000, 1, "B=1"
    ),
    "kseq_rho k=4, given logits and stats": Walk([("masses", True), *[("unders", False)] * 4], 25_000, 1, "N=1"),
    "verify_chain by rule opt_log, G=3, first rejected": Walk(
        [*[("entropy", True)] * 2, ("pair", False), *[("blend", False)] * 2], 40_000, 3, "B=1, after judge_rows"
    ),
}

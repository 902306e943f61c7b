# SPDX-License-Identifier: Apache-2.0
"""Predictions of kseq_rho, in which a cluster of blocks, or one block, makes passes over V in sequence.

Warps run in lock step. An iteration takes its memory latencies, then its instructions, with two warps per scheduler.
The clocks of one-thread work between passes are counted, since all turns of the kernel's search are alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tools.gpu_model import headers
from tools.gpu_model.calls import CHUNK, WARPS, Setting

REDUCTION = 1400  # clocks of a block's reduction after each pass: assumed
SHARED = 30  # clocks until shared memory answers: 23 to 33 in published microbenchmarks of sm_70 to sm_90
WIDEST = headers.constant("cuda/cluster_launch.h", "kLargestCluster")
ROOM, FIXED, CHUNK_KEPT = 227 * 1024, 8192, 2 * 4 * CHUNK  # bytes: of a block, of tables, of a pair's chunk
MEMORY, L2, KEPT = "memory", "L2", "shared memory"  # where a pass finds its rows, or the weights that it kept


class Walk(NamedTuple):
    passes: list[tuple[str, str]]  # a name in costs.walk, and where its rows come from
    serial: float  # clocks of one-thread work in all: assumed
    turns: str  # the kernel whose turns, one after each pass, were counted and replace `serial`


def sweep(s: Setting, V: int, kind: str, source: str, width: int, busy: int) -> float:
    """Return the microseconds of one pass by `width` blocks, while `busy` requests do the same."""
    c, trip = s.c, s.costs.walk["kept" if source == KEPT else kind]
    trips = math.ceil(V / (trip.entries * 32) / (WARPS * width))
    latency = {MEMORY: c["dram_lat"], L2: c["l2_lat"], KEPT: SHARED}[source]
    work = max(trip.instructions * c["cpi"], trip.instructions * 2 / c["issue"])
    clocks = trips * (trip.waits * latency + work)
    moved = V / trip.entries * trip.bytes
    return max(clocks, moved * busy / c["bpc"] if source == MEMORY else 0) / c["clk"] * 1e6


def fits(s: Setting, size: int) -> int:
    """Return how many clusters of `size` blocks run at once, each within a group of SMs if the groups are known."""
    return sum(sms // size for sms in s.groups or [int(s.c["sms"])])


def blocks_of(s: Setting, B: int) -> int:
    """Return the blocks of each of B clusters: the most with which all run at once, as csrc/cuda/cluster_launch.h
    chooses if nothing is kept."""
    return max([1, *(size for size in (2, 4, WIDEST) if B <= fits(s, size))])


def walk(s: Setting, B: int, V: int, what: Walk, width: int) -> float:
    """Return the microseconds of a walk by `width` blocks per request.

    With more than one block, each pass also ends in a barrier of the cluster. If the blocks have room for it, they keep
    on chip what they would read again from L2.
    """
    c = s.c
    rounds, busy = math.ceil(B / fits(s, width)), min(B, fits(s, width))
    keeps = FIXED + math.ceil(math.ceil(V / CHUNK) / width) * CHUNK_KEPT <= ROOM
    cluster = c["cluster"] if width > 1 else 0
    begin, turn, rest = (s.counted(f"{what.turns} {part}") for part in ("begin", "turn", "rest"))
    if begin is None or turn is None or rest is None:
        serial, between = what.serial, REDUCTION + cluster
    else:  # the counts include the fences of barriers
        serial, between = begin + turn * (len(what.passes) - 1) + rest, max(0, cluster - c["fence"])
    each = 0.0
    for kind, source in what.passes:
        found = L2 if source == KEPT and not keeps else source
        each += sweep(s, V, kind, found, width, busy) + between / c["clk"] * 1e6
    return c["first_us"] + rounds * (each + serial / c["clk"] * 1e6)


KSEQ = Walk([("search", MEMORY), *[("unders", KEPT)] * 4], 25_000, "search")  # kseq_rho, k = 4, given the stats

# SPDX-License-Identifier: Apache-2.0
"""A launch as a simulation of blocks: slots of SMs, one queue to memory, issue slots of each SM.

Blocks take slots in order. A block's chunk waits first come, first served, for memory (bytes over bandwidth, then a
latency), then for its SM's issue slots (a quarter of its instructions over the sustained share), but no faster than one
warp alone can run them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Generator
from typing import NamedTuple


class Wait(NamedTuple):
    clocks: float


class Load(NamedTuple):
    bytes: float
    from_l2: float = 0.0  # the share of them


class Work(NamedTuple):
    instructions: float  # of all warps of the block
    of_a_warp: float


Step = Wait | Load | Work
Block = Generator[Step, float, None]  # is sent the time in clocks

STAGGER = 150  # clocks within which the first blocks begin


def simulate(c: dict[str, float], n: int, make: Callable[[int], Block], slots: int) -> float:
    """Microseconds until n blocks, begun in order, `slots` at a time on each SM, are done."""
    memory, issue = 0.0, [0.0] * int(c["sms"])
    random_ = random.Random(1)
    begun, end = min(n, slots * len(issue)), 0.0
    heap = [(random_.random() * STAGGER, k, k % len(issue), make(k), True) for k in range(begun)]
    heapq.heapify(heap)
    while heap:
        t, i, sm, block, fresh = heapq.heappop(heap)
        try:
            step = next(block) if fresh else block.send(t)
        except StopIteration:
            end = max(end, t)
            if begun < n:
                heapq.heappush(heap, (t + c["start"], begun, sm, make(begun), True))
                begun += 1
            continue
        if isinstance(step, Wait):
            t += step.clocks
        elif isinstance(step, Load):
            memory = max(t, memory) + step.bytes * (1 - step.from_l2) / c["bpc"]
            arrives = memory + c["dram_lat"] if step.from_l2 < 1 else t + c["l2_lat"]
            t = max(arrives, t + step.bytes / c["sm_bw"])
        else:
            issue[sm] = max(t, issue[sm]) + step.instructions / 4 / c["issue"]
            t = max(issue[sm], t + step.of_a_warp * c["cpi"])
        heapq.heappush(heap, (t, i, sm, block, False))
    return end / c["clk"] * 1e6

# SPDX-License-Identifier: Apache-2.0
"""Predictions of our calls, as launches of blocks that share rows.

A block begins, streams its chunks, and reports with a fence and a ticket. The last block of a row then works alone.
COUNTED has the tails whose own counts from SASS are used; TAILS says what the others are made of.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

from tools.gpu_model import headers
from tools.gpu_model.constants import BANDS, constants
from tools.gpu_model.costs import Costs
from tools.gpu_model.queues import Block, Load, Run, Step, Wait, Work, simulate
from tools.machine_code.gpus import GPUS

LAUNCH, SMALL_BATCH = "cuda/launch.h", "ops/verify_chain/small_batch.cuh"
CHUNK = headers.constant("core/row.h", "kChunk")
WARPS = headers.constant(LAUNCH, "kThreads") // 32
FEW_POSITIONS = headers.constant(SMALL_BATCH, "kFewPositions")
MOST_OF_REQUEST = headers.constant(SMALL_BATCH, "kMostOfRequest")

# tail -> the constants that add up to its time. A tail is the serial code before or after a block's loop (tails.py). A
# tail in COUNTED has few branches, at least in a plain call (plain_call.py). Its longest path is then about what runs,
# so the count replaces the constants. Two tails are not in COUNTED: `sample rest`, whose draw with or without
# replacement has more branches, and `judge rest`, whose longest path is the test alone, without the stats. Each of
# these is the sum of its constants, of which STANDS_FOR has the counts.
TAILS = {
    "row_stats begin": ("prologue",),
    "row_stats report": ("fence", "atomic"),
    "row_stats rest": ("law",),
    "sample begin": ("prologue",),
    "sample report": ("fence", "atomic"),
    "sample rest": ("law", "draw"),
    "judge begin": ("prologue",),
    "judge report": ("fence", "atomic"),
    "judge rest": ("law", "judge"),
    "scan begin": ("prologue",),
    "verify ahead": ("prologue", "judge"),
    "verify begin": ("law",),
    "verify report": ("fence", "atomic"),
    "verify rest": ("draw",),
    "finish begin": ("prologue", "finish_pro"),
    "finish report": ("fence", "atomic"),
    "finish rest": ("draw",),
}
COUNTED = set(TAILS) - {"sample rest", "judge rest"}
TURNS = {"search begin", "search turn", "search rest"}  # tails of kseq_rho, which have no constants of their own
# Tails that run once or a few times on an SM, so their code is fetched from L2. Code that every block runs is cached.
FETCHED = {name for name in [*TAILS, *TURNS] if name.endswith("rest")} | {
    "verify ahead",
    "verify begin",
    "search begin",
}
# constant -> the tail whose count replaces it in a sum of constants, since the ops share this code
STANDS_FOR = {"law": "row_stats rest", "draw": "finish rest", "judge": "judge rest"}


class Setting:
    """The constants of a GPU at one point of their bands, and the costs of loops and tails."""

    def __init__(self, gpu: str, costs: Costs, band: str = "middle") -> None:
        self.c, self.costs, self.band = constants(gpu, band), costs, band
        self.memory, self.groups = GPUS[gpu].memory, GPUS[gpu].gpcs

    def counted(self, name: str) -> float | None:
        """Return the counted clocks of a tail, with its code's fetch if it is in FETCHED; None if it has no count."""
        tail = self.costs.tails.get(name)
        if not tail:
            return None
        return tail.clocks[BANDS.index(self.band)] + tail.lines * self.c["fetch"] * (name in FETCHED)

    def constant(self, name: str) -> float:
        """Return the clocks of a part of a tail: counted if that is possible, else assumed."""
        counted = self.counted(STANDS_FOR[name]) if name in STANDS_FOR else None
        return self.c[name] if counted is None else counted

    def tail(self, name: str) -> Wait:
        counted = self.counted(name) if name in COUNTED | TURNS else None
        return Wait(sum(map(self.constant, TAILS[name])) if counted is None else counted)


def chunks_per_warp(rows: int, chunks: int) -> int:
    return headers.step(LAUNCH, "chunks_per_warp", rows * chunks)


def pair_chunks_per_warp(rows: int, chunks: int) -> int:
    return headers.step(LAUNCH, "pair_chunks_per_warp", rows * chunks)


def grid(rows: int, V: int, in_turn: Callable[[int, int], int] = chunks_per_warp) -> tuple[int, int, int]:
    """Return the chunks of a row, the chunks that a warp takes in turn, and the blocks of a row."""
    chunks = -(-V // CHUNK)
    per_warp = in_turn(rows, chunks)
    return chunks, per_warp, -(-chunks // (WARPS * per_warp))


def stream(
    part: int, per_warp: int, chunks: int, chunk_bytes: float, instructions: float, waits: int, from_l2: float = 0.0
) -> Iterator[Step]:
    """Yield the steps of one block's loop. waits: how many times in turn a warp waits for memory, for one chunk."""
    for k in range(per_warp):
        warps = max(0, min(WARPS, chunks - (part * per_warp + k) * WARPS))
        if not warps:
            return
        for _ in range(waits):
            yield Load(warps * chunk_bytes / waits, from_l2)
            yield Work(warps * instructions / waits, instructions / waits)


def stops_of(B: int, G: int, alpha: float, seed: int = 1) -> list[int]:
    """Return the position of each request's first rejection, if each draft is accepted with probability alpha."""
    draw = random.Random(seed)
    return [next((i for i in range(G) if draw.random() >= alpha), G) for _ in range(B)]


def verify_chain(
    s: Setting, B: int, G: int, V: int, item: int = 2, alpha: float = 0.7, stats: bool = True, one_hot: bool = False
) -> tuple[float, dict[str, float]]:
    """Return the microseconds of an exact chain in a graph; and those of both launches, with the least MB to read.

    stats: the draft's stats are given. one_hot: drafts have no rows.
    """
    stop = stops_of(B, G, alpha)
    need = (sum(i + 1 for i in stop) + (0 if one_hot else sum(i < G for i in stop))) * V * item
    few, sides = is_small(B, G), 1 if stats or one_hot else 2
    first = _scan_positions(s, B, G, V, item, sides) if few else _judge_rows(s, stop, B, G, V, item, sides)
    second = _last_launch(s, stop, B, G, V, item, "verify" if few else "finish", first, one_hot)
    total = s.c["first_us"] + (0 if few else s.c["memset_us"]) + first.us + second
    return total, {"judge": first.us, "finish": second, "floor_MB": need / 1e6}


def is_small(B: int, G: int) -> bool:
    """Return whether a batch has so few positions that it takes the launches for small batches."""
    return G < MOST_OF_REQUEST and B * (G + 1) <= FEW_POSITIONS


def _judge_rows(s: Setting, stop: list[int], B: int, G: int, V: int, item: int, sides: int) -> Run:
    chunks, per_warp, blocks = grid(B * (G + 1), V)
    known, seen = [1 << 30] * B, [0.0] * B
    done: Counter[int] = Counter()
    costs = s.costs

    def block(k: int) -> Block:
        unit, part = divmod(k, blocks * sides)
        i, b = divmod(unit, B)
        t = yield s.tail("judge begin")
        if known[b] < i and t >= seen[b]:
            return
        if part < blocks or i < G:
            yield from stream(part % blocks, per_warp, chunks, CHUNK * item, costs.scan, costs.scan_waits)
        yield s.tail("judge report")
        done[unit] += 1
        if done[unit] == blocks * sides:
            t = yield Wait(s.tail("judge rest").clocks + (sides - 1) * s.constant("law"))
            if i == stop[b]:
                known[b], seen[b] = i, t

    return simulate(s.c, B * (G + 1) * blocks * sides, block, costs.scan_slots)


def _scan_positions(s: Setting, B: int, G: int, V: int, item: int, sides: int) -> Run:
    """Simulate the first launch of a small batch: blocks read all rows, and do nothing after their last chunk."""
    chunks, per_warp, blocks = grid(B * (G + 1), V)

    def block(k: int) -> Block:
        unit, part = divmod(k, blocks * sides)
        yield s.tail("scan begin")
        if part < blocks or unit // B < G:
            yield from stream(part % blocks, per_warp, chunks, CHUNK * item, s.costs.scan, s.costs.scan_waits)

    return simulate(s.c, B * (G + 1) * blocks * sides, block, s.costs.scan_slots)


def _last_launch(
    s: Setting, stop: list[int], B: int, G: int, V: int, item: int, name: str, first: Run, one_hot: bool = False
) -> float:
    """Return the microseconds from the end of the first launch to the end of the last one.

    name: "finish", or "verify", whose blocks first compute stats and test drafts, one warp per position. The last
    launch begins when the last block of the first has begun. While the first still runs, the blocks that fit on the SMs
    run their part before the wait (`verify ahead`).
    """
    chunks, per_warp, blocks = grid(B, V, pair_chunks_per_warp)
    read = sum(i + 1 for i in stop) * V * item
    warm = min(1.0, 0.8 * s.c["l2"] / max(read, 1))  # share of the row at the stop that is still in L2
    if one_hot:  # one block reads the row's chunk sums, and sums one chunk again
        blocks = 1
    done: Counter[int] = Counter()
    costs, begin, ahead = s.costs, s.tail(f"{name} begin"), Wait(0)
    if name == "verify":
        turns, ahead = -(-(G + 1) // WARPS), s.tail("verify ahead")
        begin = Wait(begin.clocks * turns + ahead.clocks * (turns - 1))
    early = costs.pair_slots * int(s.c["sms"])
    there = first.last_us + s.c["gap_us"] + ahead.clocks / s.c["clk"] * 1e6  # when the first blocks are ready to go on
    gap = max(first.us + s.c["early_us"], there) - first.us

    def block(k: int) -> Block:
        b, part = divmod(k, blocks)
        if k >= early:
            yield ahead
        yield begin
        if stop[b] < G and one_hot:
            yield Wait(s.c["special"])
            for _ in range(2):  # half of the chunk at a time, of one row
                yield Load(CHUNK * item / 2, warm)
                yield Work(costs.pair / 4, costs.pair / 4)
        elif stop[b] < G:
            yield from stream(part, per_warp, chunks, 2 * CHUNK * item, costs.pair, costs.pair_waits, warm / 2)
            yield s.tail(f"{name} report")
            done[b] += 1
            if done[b] < blocks:
                return
        elif part:
            return
        yield s.tail(f"{name} rest")

    return gap + simulate(s.c, B * blocks, block, costs.pair_slots).us


def _rows(s: Setting, op: str, N: int, V: int, item: int, slots: int) -> float:
    chunks, per_warp, blocks = grid(N, V)
    done: Counter[int] = Counter()

    def block(k: int) -> Block:
        n, part = divmod(k, blocks)
        yield s.tail(f"{op} begin")
        yield from stream(part, per_warp, chunks, CHUNK * item, s.costs.scan, s.costs.scan_waits)
        yield s.tail(f"{op} report")
        done[n] += 1
        if done[n] == blocks:
            yield s.tail(f"{op} rest")

    return s.c["first_us"] + s.c["memset_us"] + simulate(s.c, N * blocks, block, slots).us


def row_stats(s: Setting, N: int, V: int, item: int = 2) -> float:
    return _rows(s, "row_stats", N, V, item, s.costs.scan_slots)


def sample(s: Setting, N: int, V: int, item: int = 2) -> float:
    """Return the microseconds of one draw per row. A draw needs more registers, so fewer blocks fit an SM."""
    return _rows(s, "sample", N, V, item, s.costs.sample_slots)

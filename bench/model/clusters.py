# SPDX-License-Identifier: Apache-2.0
"""Exact chains by clusters of thread blocks, simulated block by block: designs that no kernel of ours has yet.

Issue and port queues per SM, one queue to memory, clusters inside a GPC. `resident`: a cluster per (request, position)
keeps its row in shared memory, and looks at the stop before it reads. `l2`: the same with more blocks an SM; where a
draft is rejected, p is read again, from L2. `walk`: a cluster per request takes positions in turn.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bench.model import gpus
from bench.model.calls import CHUNK, stops_of
from bench.model.gpus import Constant

CLOCKS = {
    "barrier": Constant((400, 850, 1100), "S5", "a cluster's barrier"),
    "verdict": Constant((1300, 2200, 3200), "A", "the last chunk's sum to accept or reject; from a prototype's SASS"),
    "draw": Constant((1800, 2800, 4500), "A", "two picks; from a prototype's SASS"),
    "report": Constant((1200, 1800, 2800), "A", "ticket, slots, stores; from a prototype's SASS"),
    "chain": Constant((450, 600, 800), "A", "one warp, one chunk of one row; from a prototype's SASS"),
    "pairchain": Constant((700, 950, 1250), "A", "one warp, one chunk of a pair; from a prototype's SASS"),
    "port": Constant((56, 48, 38), "A", "bytes a clock into an SM: 64 by design, less with all SMs busy"),
    "begin": Constant((300, 500, 800), "A", "a block's first instructions; from a prototype's SASS"),
    "bar": Constant((40, 60, 90), "A", "a block's barrier"),
}
SHORT = {  # serial tails as short as they may become, barriers by st.async and mbarrier: all assumed
    "barrier": Constant((220, 300, 450), "A", ""),
    "verdict": Constant((600, 900, 1300), "A", ""),
    "draw": Constant((900, 1300, 2000), "A", ""),
    "report": Constant((900, 1300, 2000), "A", ""),
}
SCAN, PAIR = (
    239,
    493,
)  # warp instructions a chunk of 1,024 bf16 entries, of a row and of a pair: a prototype's SASS, +2 %
OTHERS_END = 200  # clocks of a cluster's other blocks while one draws: assumed

Step = float | Literal["barrier"]  # when it is due, or a wait for the other blocks of the cluster
Life = Generator[Step, float, None]


class Design(NamedTuple):
    size: int  # blocks of a cluster
    threads: int
    per_sm: int
    depth: int  # copies in flight a warp
    walk: bool = False
    prefetch: bool = False  # the next position's row while this one is judged
    rereads: float | None = None  # the share of p's second reading that hits L2; None: the row was kept


DESIGNS = {
    "resident s=16": Design(16, 512, 1, 3),
    "resident s=8": Design(8, 256, 3, 4),
    "resident s=4": Design(4, 256, 2, 4),
    "l2 s=8": Design(8, 256, 4, 2, rereads=1.0),
    "l2 s=4": Design(4, 256, 4, 2, rereads=1.0),
    "walk s=16": Design(16, 512, 1, 3, walk=True, prefetch=True),
    "walk s=8": Design(8, 256, 2, 4, walk=True, prefetch=True),
    "walk s=4": Design(4, 256, 2, 4, walk=True),
}


def constants(gpu: str, band: str, short: bool = False) -> dict[str, float]:
    own = {**CLOCKS, **(SHORT if short else {})}
    return gpus.constants(gpu, band) | {name: x.band[gpus.BANDS.index(band)] for name, x in own.items()}


@dataclass
class Cluster:
    blocks: list[Block] = field(default_factory=list)  # that wait at its barrier
    when: float = 0.0  # the last of them came
    skip: bool = False  # the stop is known to lie before


class Block(NamedTuple):
    life: Life
    sm: int
    cluster: Cluster


class Simulation:
    """`look`: blocks look at the stop before they read."""

    def __init__(
        self,
        c: dict[str, float],
        gpcs: tuple[int, ...],
        design: Design,
        B: int,
        G: int,
        V: int,
        alpha: float,
        look: bool,
    ) -> None:
        self.c, self.design, self.B, self.G, self.alpha, self.look = c, design, B, G, alpha, look
        self.stop = stops_of(B, G, alpha)
        self.chunks = -(-V // CHUNK)
        self.warps, self.item = design.threads // 32, 2
        first = [0, *itertools.accumulate(gpcs)]
        self.gpcs = [list(range(a, b)) for a, b in itertools.pairwise(first)]
        self.free, self.issue, self.port = [design.per_sm] * first[-1], [0.0] * first[-1], [0.0] * first[-1]
        self.memory = self.read = self.last = 0.0
        self.events: list[tuple[float, int, Block]] = []
        self.tick = itertools.count()
        self.rejected: dict[int, tuple[int, float]] = {}  # request -> (position, when it can be seen)
        self.waiting = deque(range(B if design.walk else B * (G + 1)))

    def run(self) -> tuple[float, float]:
        """Microseconds of one call, and MB read."""
        self._place(0.0)
        while self.events:
            t, _, block = heapq.heappop(self.events)
            try:
                step = block.life.send(t)
            except StopIteration:
                self.free[block.sm] += 1
                self.last = max(self.last, t)
                self._place(t)
                continue
            if step == "barrier":
                self._arrive(t, block)
            else:
                self._at(step, block)
        return self.c["first_us"] + self.last / self.c["clk"] * 1e6, self.read / 1e6

    def _at(self, t: float, block: Block) -> None:
        heapq.heappush(self.events, (t, next(self.tick), block))

    def _place(self, t: float) -> None:
        """Clusters begin in order, each in the GPC with most room, as long as one has enough."""
        while self.waiting:
            room, gpc = max((sum(self.free[sm] for sm in g), i) for i, g in enumerate(self.gpcs))
            if room < self.design.size:
                return
            unit, cluster = self.waiting.popleft(), Cluster()
            for rank in range(self.design.size):
                sm = max(self.gpcs[gpc], key=self.free.__getitem__)
                self.free[sm] -= 1
                life = self._life(unit, cluster, rank, sm)
                next(life)
                self._at(t + self.c["start"], Block(life, sm, cluster))

    def _arrive(self, t: float, block: Block) -> None:
        cluster = block.cluster
        cluster.when = max(cluster.when, t)
        cluster.blocks.append(block)
        if len(cluster.blocks) == self.design.size:
            for b in cluster.blocks:
                self._at(cluster.when + self.c["barrier" if self.design.size > 1 else "bar"], b)
            cluster.blocks, cluster.when = [], 0.0

    def _load(self, t: float, sm: int, moved: float, l2: float = 0.0) -> float:
        self.read += moved * (1 - l2)
        self.memory = max(t, self.memory) + moved * (1 - l2) / self.c["bpc"]
        self.port[sm] = max(t, self.port[sm]) + moved / self.c["port"]
        latency = self.c["dram_lat"] if l2 < 1 else self.c["l2_lat"]
        return max(self.memory + self.c["dram_lat"], self.port[sm] + latency)

    def _compute(self, t: float, sm: int, n: int, instructions: int, chain: float) -> float:
        """n chunks side by side on n warps"""
        self.issue[sm] = max(t, self.issue[sm]) + n * instructions / 4 / self.c["issue"]
        return max(self.issue[sm], t + chain)

    def _batches(self, mine: int) -> list[int]:
        """Chunks of each turn in which a block's warps take one each"""
        return [min(self.warps, mine - first) for first in range(0, mine, self.warps)]

    def _sweep(
        self,
        t: float,
        sm: int,
        mine: int,
        pair: bool,
        rows: int = 1,
        l2: float = 0.0,
        flying: list[float] | None = None,
    ) -> Generator[float, float, float]:
        turns, moved = self._batches(mine), CHUNK * self.item * rows
        instructions, chain = (PAIR, self.c["pairchain"]) if pair else (SCAN, self.c["chain"])
        get = lambda k: self._load(t, sm, turns[k] * moved, l2)
        if flying is None:
            flying = [get(k) for k in range(min(self.design.depth, len(turns)))]
        for k, n in enumerate(turns):
            t = yield max(t, flying[k])
            t = yield self._compute(t, sm, n, instructions, chain)
            if len(flying) < len(turns):
                flying.append(get(len(flying)))
        return t

    def _life(self, unit: int, cluster: Cluster, rank: int, sm: int) -> Life:
        c, walk = self.c, self.design.walk
        share = -(-self.chunks // self.design.size)
        mine = max(0, min(share, self.chunks - rank * share))
        position, request = (0, unit) if walk else divmod(unit, self.B)
        t = yield 0.0
        t = yield t + c["begin"]
        if walk:
            t = yield from self._walk(t, request, mine, sm)
            position = self.stop[request]
        else:
            if self.look and position:
                t = yield t + c["l2_lat"]
                before, when = self.rejected.get(request, (position, 0.0))
                cluster.skip |= before < position and when <= t
            if not cluster.skip:
                t = yield from self._sweep(t, sm, mine, pair=False)
            t = yield "barrier"
            if cluster.skip:
                if rank == 0:
                    yield t + c["bar"] + c["report"]
                return
            t = yield t + c["verdict"] + c["bar"]
        t = yield from self._emit(t, request, position, mine, rank, sm)
        if rank == 0:
            yield t + c["report"]

    def _walk(self, t: float, request: int, mine: int, sm: int) -> Generator[Step, float, float]:
        flying = None
        for position in range(self.stop[request] + 1):
            t = yield from self._sweep(t, sm, mine, pair=False, flying=flying)
            ahead = self.design.prefetch and position < self.G
            flying = [self._load(t, sm, n * CHUNK * self.item) for n in self._batches(mine)] if ahead else None
            t = yield "barrier"
            t = yield t + self.c["verdict"] + self.c["bar"]
        return t

    def _emit(
        self, t: float, request: int, position: int, mine: int, rank: int, sm: int
    ) -> Generator[Step, float, float]:
        """The residual's sum where the draft is rejected, and the draw."""
        stop, rereads = self.stop[request], self.design.rereads
        behind = position > stop  # its verdict is that of a draft that is not looked at
        chance = lambda: random.Random(request * 99 + position).random() > self.alpha
        rejects = position < self.G and (position == stop or (behind and chance()))
        if rejects and self.rejected.get(request, (self.G + 1, 0.0))[0] > position:
            self.rejected[request] = (position, t + self.c["l2_lat"])
        known = self.look and behind and self.rejected.get(request, (9, 0.0))[0] < position
        if rejects and not known:
            rows, l2 = (1, 0.0) if rereads is None else (2, rereads / 2)
            t = yield from self._sweep(t, sm, mine, True, rows, l2)
            t = yield "barrier"
        if position == self.G or rejects:
            t = yield t + (self.c["draw"] if rank == 0 else OTHERS_END)
        return t


def simulate(
    gpu: str, design: Design, B: int, G: int, V: int, alpha: float, band: str = "middle", short: bool = False
) -> tuple[float, float]:
    """Microseconds of one call by this design, and MB read."""
    c = constants(gpu, band, short)
    return Simulation(c, gpus.GPUS[gpu].gpcs, design, B, G, V, alpha, look=B > 1).run()

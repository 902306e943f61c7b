# SPDX-License-Identifier: Apache-2.0
"""Paths through a loop iteration, or through straight-line code, by dynamic programming over states.

An iteration from header to latch may take many paths (dtypes, kinds of rows, tails). A state tells them apart: bytes of
wide loads, number of MUFU, and 16-bit entries unpacked. For each state the path with the fewest instructions is kept,
so printed costs are lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from tools.machine_code.control_flow import Graph
from tools.machine_code.instructions import narrowly, unpacks, wide

MOST = 255  # MUFU and entries are counted up to here

State = tuple[int, int, int]  # bytes, MUFU, entries unpacked


class Weight(NamedTuple):
    """Counts of one block."""

    bytes: int
    mufu: int
    unpacked: int
    instructions: int


class Weights(NamedTuple):
    of: list[Weight]
    narrow: list[bool]  # blocks that read a row entry by entry

    def aligned(self, body: Iterable[int], header: int) -> set[int]:
        return {b for b in body if b == header or not self.narrow[b]}


def weigh(g: Graph, async_kernel: bool) -> Weights:
    of, narrow = [], []
    for b in range(len(g.spans)):
        code = g.block(b)
        moved = sum(wide(x.word, async_kernel) for x in code)
        mufu = sum(x.word.startswith("MUFU") for x in code)
        of.append(Weight(moved, mufu, sum(unpacks(x.word, x.args) for x in code), len(code)))
        narrow.append(narrowly(code))
    return Weights(of, narrow)


class Paths(NamedTuple):
    """The cheapest path to a block for each state, sorted by state: arrays of one size."""

    states: np.ndarray  # encoded: see encoded()
    costs: np.ndarray
    blocks: np.ndarray  # the block before, -1 for none
    at: np.ndarray  # the index of the path there


def encoded(state: State) -> int:
    return state[0] << 16 | min(state[1], MOST) << 8 | min(state[2], MOST)


def decoded(state: int) -> State:
    return state >> 16, state >> 8 & MOST, state & MOST


def _extended(paths: Paths, b: int, more: Weight, sign: int) -> Paths:
    """Return the paths that go on from block b to a block of weight `more`."""
    mufu, unpacked = (np.minimum((paths.states >> s & MOST) + n, MOST) for s, n in ((8, more.mufu), (0, more.unpacked)))
    states = ((paths.states >> 16) + more.bytes << 16) | mufu << 8 | unpacked
    n = len(states)
    return Paths(states, paths.costs + sign * more.instructions, np.full(n, b), np.arange(n))


def _cheapest(some: list[Paths]) -> Paths:
    """Return the cheapest path to each state; of equal ones the first."""
    every = Paths(*map(np.concatenate, zip(*some)))
    order = np.lexsort((every.costs, every.states))
    states = every.states[order]
    return Paths(*(x[order[np.diff(states, prepend=-1) != 0]] for x in every))


class Ways:
    """The shortest (with `longest`, longest) path to each state, from `header` to any of `ends`.

    states: state -> instructions of its path, the shortest (longest) first.
    """

    def __init__(
        self,
        g: Graph,
        body: set[int],
        header: int,
        ends: Iterable[int],
        weight: Callable[[int], Weight],
        longest: bool = False,
    ) -> None:
        sign = -1 if longest else 1
        first = weight(header)
        alone = encoded(first[:3]), sign * first.instructions, -1, -1
        arriving = {header: [Paths(*(np.array([x]) for x in alone))]}
        best = self._best = {}
        for b in sorted(body, key=g.place.__getitem__):
            if b not in arriving:
                continue
            best[b] = _cheapest(arriving.pop(b))
            for x in g.forward(b):
                if x in body and x != header:
                    arriving.setdefault(x, []).append(_extended(best[b], b, weight(x), sign))
        arrived = [
            (int(n), end, i, decoded(int(state)))
            for end in ends
            if end in best
            for i, (state, n) in enumerate(zip(best[end].states, best[end].costs))
        ]
        self.states: dict[State, int] = {}
        self._end: dict[State, tuple[int, int]] = {}  # the last block of a state's path, and its index there
        for n, end, i, state in sorted(arrived):
            if state not in self.states:
                self.states[state], self._end[state] = sign * n, (end, i)

    def blocks(self, state: State) -> list[int]:
        """Return the blocks of a state's path."""
        b, at = self._end[state]
        trail = []
        while b >= 0:
            trail.append(b)
            b, at = int(self._best[b].blocks[at]), int(self._best[b].at[at])
        return trail[::-1]


def hot_state(states: Iterable[State]) -> State | None:
    """Return the state of a 16-bit row whose exponentials are all computed: most entries unpacked per byte, then most
    MUFU per byte, then most bytes.

    Two bytes hold one entry, so a path that runs has at most one MUFU and one unpacked entry per two bytes, plus a few
    from other code. A state with more takes both sides of one condition and never runs. If all states have more, the
    one with the fewest MUFU per byte is returned.
    """
    some = [s for s in states if s[0] > 0]
    if not some:
        return None
    fit = [s for s in some if s[1] <= 0.5 * s[0] + 2 and s[2] <= 0.5 * s[0] + 12] or [
        min(some, key=lambda s: s[1] / s[0])
    ]
    return max(fit, key=lambda s: (min(round(s[2] / s[0], 2), 0.5), min(round(s[1] / s[0], 2), 0.5), s[0]))

# SPDX-License-Identifier: Apache-2.0
"""Paths through a loop iteration, or through straight-line code, by dynamic programming over states.

An iteration from header to latch may take many paths (dtypes, kinds of rows, tails). A state tells them apart: bytes of
wide loads, number of MUFU, and 16-bit entries unpacked. For each state the path with the fewest instructions is kept,
so printed costs are lower bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tools.machine_code.control_flow import Graph, flood
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


class Ways:
    """The shortest (with `longest`, longest) path to each state, from `header` to any of `ends`.

    states: state -> instructions of its path.
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
        best: dict[int, dict[State, tuple[int, tuple[int, State] | None]]] = {
            header: {first[:3]: (sign * first.instructions, None)}
        }
        for b in sorted(body, key=g.place.__getitem__):
            for x in g.forward(b) if b in best else ():
                if x not in body or x == header:
                    continue
                more, known = weight(x), best.setdefault(x, {})
                for old, (n, _) in best[b].items():
                    mufu, unpacked = min(old[1] + more.mufu, MOST), min(old[2] + more.unpacked, MOST)
                    state, cost = (old[0] + more.bytes, mufu, unpacked), n + sign * more.instructions
                    if state not in known or known[state][0] > cost:
                        known[state] = (cost, (b, old))
        self._best, self._end = best, {}
        costs: dict[State, int] = {}
        for end in ends:
            for state, (n, _) in best.get(end, {}).items():
                if state not in costs or costs[state] > n:
                    costs[state], self._end[state] = n, end
        self.states = {state: sign * n for state, n in costs.items()}

    def blocks(self, state: State) -> list[int]:
        """Return the blocks of a state's path."""
        b, trail = self._end[state], []
        while True:
            trail.append(b)
            step = self._best[b][state][1]
            if step is None:
                return trail[::-1]
            b, state = step


def hot_state(states: Iterable[State]) -> State | None:
    """Return the state of 16-bit rows with all exponentials: most entries, then most MUFU per byte, most bytes.

    A state with more than one of either per entry of two bytes is excluded: its path takes one condition in two ways,
    so it never runs.
    """
    some = [s for s in states if s[0] > 0]
    if not some:
        return None
    fit = [s for s in some if s[1] <= 0.5 * s[0] + 2 and s[2] <= 0.5 * s[0] + 12] or [
        min(some, key=lambda s: s[1] / s[0])
    ]
    return max(fit, key=lambda s: (min(round(s[2] / s[0], 2), 0.5), min(round(s[1] / s[0], 2), 0.5), s[0]))


def around(g: Graph, body: set[int], header: int, ends: Iterable[int]) -> set[int]:
    """Return the blocks on any path from header to latch inside `body`."""
    inside = lambda blocks: [x for x in blocks if x in body]
    down = flood([header], lambda b: inside(g.next[b]))
    up = flood(ends, lambda b: [] if b == header else inside(g.previous[b]))
    return down & up


def largest_by_bytes(states: dict[State, int]) -> dict[int, tuple[int, int, int]]:
    """Return bytes -> (entries unpacked, MUFU, instructions) of the path of a 16-bit row."""
    found: dict[int, tuple[int, int, int]] = {}
    for (b, mufu, unpacked), n in states.items():
        if not b or mufu > 0.5 * b + 2 or unpacked > 0.5 * b + 12:
            continue
        if b not in found or (unpacked, mufu) > found[b][:2]:
            found[b] = (unpacked, mufu, n)
    return found

# SPDX-License-Identifier: Apache-2.0
"""Basic blocks, dominators and natural loops of one kernel.

Indirect branches have the targets in the cubin's notes. BRA.DIV (a shuffle whose lanes diverged) is never taken. A
call's target is a separate root, and control continues after the call.
"""

from __future__ import annotations

import copy
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tools.machine_code.instructions import Code

TOP = -1  # the immediate dominator of every root


class Graph:
    """The control-flow graph of a kernel. Blocks are numbers; `spans[b]` is (first instruction, one past the last)."""

    def __init__(self, code: Code, targets: dict[int, list[int]] | None = None) -> None:
        self.code = code
        index = {x.at: i for i, x in enumerate(code)}
        roots, jumps = _jumps(code, targets or {}, index)
        n = len(code)
        heads = {0} | roots | {i + 1 for i in jumps} | {x for to in jumps.values() for x in to}
        starts = sorted(h for h in heads if h < n)
        self.spans = list(zip(starts, [*starts[1:], n]))
        self.block_of = {start: b for b, (start, _) in enumerate(self.spans)}
        follow = lambda end: jumps.get(end - 1, [end] if end < n else [])
        self.next = [[self.block_of[x] for x in follow(end) if x < n] for _, end in self.spans]
        self.roots = [self.block_of[r] for r in roots]
        self._walk()

    def along(self, ways: Sequence[list[int]]) -> Graph:
        """Return the same graph with fewer edges: ways[b] are the successors of block b."""
        g = copy.copy(self)
        g.next = list(ways)
        g._walk()
        return g

    def _walk(self) -> None:
        self.order = reverse_postorder(sorted(self.roots), self.next.__getitem__)
        self.place = {b: i for i, b in enumerate(self.order)}
        self.previous: dict[int, list[int]] = defaultdict(list)
        for b in self.order:
            for x in self.next[b]:
                self.previous[x].append(b)
        self.above = self._dominators()
        self.back, self.loops = self._loops()

    def block(self, b: int) -> Code:
        return self.code[self.spans[b][0] : self.spans[b][1]]

    def address(self, b: int) -> int:
        return self.code[self.spans[b][0]].at

    def _dominators(self) -> dict[int, int]:
        """Return block -> its immediate dominator (Cooper, Harvey and Kennedy 2001)."""
        place = {**self.place, TOP: TOP}
        roots = set(self.roots)
        above = dict.fromkeys(self.roots, TOP)

        def meet(x: int, y: int) -> int:
            while x != y:
                while place[x] > place[y]:
                    x = above[x]
                while place[y] > place[x]:
                    y = above[y]
            return x

        changed = True
        while changed:
            changed = False
            for b in self.order:
                if b in roots:
                    continue
                known = [q for q in self.previous[b] if q in above]
                if known and above.get(b) != (new := functools.reduce(meet, known)):
                    above[b], changed = new, True
        return above

    def dominates(self, x: int, y: int) -> bool:
        while y != TOP and self.place[y] >= self.place[x]:
            if x == y:
                return True
            y = self.above[y]
        return False

    def _loops(self) -> tuple[set[tuple[int, int]], dict[int, set[int]]]:
        """Return the back edges, and header -> the blocks of its natural loop."""
        place = self.place
        back = {(u, h) for u in self.order for h in self.next[u] if place[h] <= place[u] and self.dominates(h, u)}
        loops: dict[int, set[int]] = {}
        for u, h in back:
            body = loops.setdefault(h, {h})
            stack = [u]
            while stack:
                x = stack.pop()
                if x not in body:
                    body.add(x)
                    stack += [q for q in self.previous[x] if q in place]
        return back, loops

    def forward(self, b: int) -> list[int]:
        """Return the successors of b without back edges."""
        return [x for x in self.next[b] if (b, x) not in self.back and self.place[x] > self.place[b]]

    def once(self, b: int) -> list[int]:
        """Return the successors of b if each loop runs once: a latch continues at the exits of its loop's header."""
        out = []
        for x in self.next[b]:
            if (b, x) not in self.back:
                out.append(x)
            else:
                out += [y for y in self.next[x] if y not in self.loops[x]]
        return out

    def outermost(self, b: int) -> set[int]:
        """Return the blocks of the largest loop around b; b alone if there is none."""
        return max((body for body in self.loops.values() if b in body), key=len, default={b})


def _jumps(code: Code, targets: dict[int, list[int]], index: dict[int, int]) -> tuple[set[int], dict[int, list[int]]]:
    """Return the starts of functions, and the possible successors of each instruction that ends a block."""
    roots, jumps = {0}, {}
    for i, x in enumerate(code):
        target = re.search(r"(0x[0-9a-f]+)\s*$", x.args)
        to = index.get(int(target[1], 16)) if target else None
        if x.head == "BRA":
            cold = ".DIV" in x.word
            free = not x.guard and not re.search(r"\bU?P\d", x.args) and not cold
            through = [] if free or i + 1 >= len(code) else [i + 1]
            jumps[i] = through + ([to] if to is not None and not cold else [])
        elif x.head == "BRX":
            known = [index[t] for t in targets.get(x.at, []) if t in index]
            jumps[i] = known + ([i + 1] if x.guard else [])
        elif x.head in ("EXIT", "RET"):
            jumps[i] = [i + 1] if x.guard else []
        elif x.head == "CALL" and to is not None:
            roots.add(to)
    return roots, jumps


def reverse_postorder(roots: Iterable[int], step: Callable[[int], Iterable[int]]) -> list[int]:
    seen: set[int] = set()
    post: list[int] = []
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(step(root)))]
        while stack:
            b, rest = stack[-1]
            for x in rest:
                if x not in seen:
                    seen.add(x)
                    stack.append((x, iter(step(x))))
                    break
            else:
                post.append(b)
                stack.pop()
    return post[::-1]


def flood(start: Iterable[int], step: Callable[[int], Iterable[int]]) -> set[int]:
    """Return all that can be reached from `start`."""
    seen, stack = set(start), list(start)
    while stack:
        for x in step(stack.pop()):
            if x not in seen:
                seen.add(x)
                stack.append(x)
    return seen

# SPDX-License-Identifier: Apache-2.0
"""Serial tails: what a block runs before and after its streaming loop, counted from SASS on the longest path.

A path goes through each loop once. A plain call of V = 151,936 does not run two kinds of code, so paths avoid them if
there is a way around:

- Loops that compilers unrolled over several chunks per thread (with four or more loads from global memory, none of them
  wide). A row's 149 chunks are fewer than a block's 256 threads.
- Passes over whole rows, which are fallbacks in tails.

A routine of ours is followed where it is called, unless it is a fallback (FALLBACKS). Routines that compilers add (the
slow paths of division and of square roots in double) count as one instruction.

The longest path may still take all options at once: rows by index, padding, a rule, each way of a draw. For a tail with
such options the path is an upper bound, too large by a factor of three to five. For a tail with few, the path is what
runs, within 10 to 20%. ``calls.COUNTED`` has the tails whose counts predictions use.

Clocks are those of a single warp that issues in order: each instruction waits for its registers and predicates, then
for its turn. The fetch of code that a tail runs once is added per line (CONSTANTS["fetch"]). Other warps of the SM and
bank conflicts are not modelled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from tools.gpu_model.constants import BANDS, CONSTANTS
from tools.gpu_model.plain_call import argument_of, thread_of
from tools.machine_code.control_flow import Graph, reverse_postorder
from tools.machine_code.elf import Note
from tools.machine_code.gpus import Band
from tools.machine_code.instructions import ATOMICS, BRANCHES, FP64, XU, Code, Instruction, wide
from tools.machine_code.known import with_argument
from tools.machine_code.operands import operands

SEARCH = "kseq_rho::search"  # makes a pass over its rows in each turn
TAILED = (
    r"(row_stats::scan|sample::draws|verify_chain::judge_rows)<false>"
    r"|verify_chain::(finish_requests|scan_positions|verify_positions)"
)

# for invalid rows, residuals without mass, and rows with views or ids
FALLBACKS = "invalid_stats|target_sum|target_draw|changed_entry"

LINE = 128  # bytes of code that are fetched at once
ITEMS = 4  # a loop with this many loads per iteration counts as unrolled
DETOUR = 1e9  # clocks added to an avoided block, so that any way around it is shorter

CLOCKS: dict[str, tuple[Band, str]] = {  # class -> (kind, middle, hard), source in constants.SOURCES
    "alu": ((4, 5, 6), "S6 S8"),
    "special": ((15, 20, 40), "kind S7, else assumed: MUFU, conversions, population counts"),
    "double": ((6, 16, 54), "kind S6, hard S7, middle assumed"),
    "shuffle": ((15, 24, 33), "kind S7, else assumed"),
    "register": ((15, 25, 50), "assumed: special registers, values made uniform"),
    "constant": ((10, 30, 90), "assumed: a constant that the cache holds, or does not"),
    "shared": ((20, 29, 35), "kind S8, hard S2"),
    "shared_atomic": ((40, 80, 160), "assumed"),
    "load": ((200, 300, 720), "kind S8, middle S2 from L2, hard S2 from DRAM"),
    "atomic": (CONSTANTS["atomic"].band, CONSTANTS["atomic"].source),
    "fence": (CONSTANTS["fence"].band, CONSTANTS["fence"].source),
    "barrier": ((40, 60, 90), "assumed"),
    "branch": ((2, 8, 16), "hard S7, else assumed"),
    "issue": ((1, 2, 3.2), "middle S9, hard as CONSTANTS['cpi']: between two instructions of a warp"),
}
NAMES = {"BAR": "barrier", "MEMBAR": "fence", "LDS": "shared", "ATOMS": "shared_atomic", "SHFL": "shuffle"}
NAMES |= dict.fromkeys(("LDG", "LD", "LDL"), "load") | dict.fromkeys(("LDC", "ULDC", "LDCU"), "constant")
NAMES |= dict.fromkeys(("REDUX", "CREDUX"), "shuffle") | dict.fromkeys(("S2R", "S2UR", "R2UR", "CS2R"), "register")
NAMES |= dict.fromkeys(ATOMICS - {"ATOMS"}, "atomic") | dict.fromkeys(XU, "special") | dict.fromkeys(FP64, "double")
NAMES |= dict.fromkeys(BRANCHES, "branch") | dict.fromkeys(("UFLO", "UPOPC", "UBREV"), "special")
BLOCKING = {"barrier", "fence", "branch"}  # nothing is issued after one until it is done


def kind_of(head: str) -> str:
    return NAMES.get(head, "alu")


Scheduled = list[tuple[str, set[str], set[str]]]


def schedule(run: Iterable[Instruction]) -> Scheduled:
    return [(kind_of(x.head), *operands(x)) for x in run]


def clocks(run: Scheduled, band: int, all_results: bool = False) -> float:
    """Return when one warp has issued the last instruction of a run or, with `all_results`, has all results."""
    now, ready = 0.0, {}
    gap = CLOCKS["issue"][0][band]
    for kind, writes, reads in run:
        now = max([now, *(ready[r] for r in reads if r in ready)])
        latency = CLOCKS[kind][0][band]
        if kind in BLOCKING:
            now += latency
        else:
            ready |= dict.fromkeys(writes, now + latency)
            now += gap
    return max([now, *ready.values()]) if all_results else now


def longest(
    g: Graph,
    starts: Iterable[int],
    is_end: Callable[[int], bool],
    weight: Callable[[int], float],
    without: Iterable[int] = (),
) -> list[int]:
    """Return the heaviest path from any of `starts` to an end, without the blocks in `without`.

    It is empty if no end can be reached.
    """
    closed = set(without)
    step = lambda b: [] if is_end(b) else [x for x in g.once(b) if x not in closed]
    order = reverse_postorder(starts, step)
    place = {b: i for i, b in enumerate(order)}
    best: dict[int, tuple[float, int | None]] = {b: (weight(b), None) for b in starts}
    for b in order:
        for x in step(b) if b in best else ():
            reached = best[b][0] + weight(x)
            if place[x] > place[b] and (x not in best or best[x][0] < reached):
                best[x] = (reached, b)
    ends = [b for b in best if is_end(b)]
    trail: list[int] = []
    last: int | None = max(ends, key=lambda b: best[b][0], default=None)
    while last is not None:
        trail.append(last)
        last = best[last][1]
    return trail[::-1]


def add_tails(kernel: dict, g: Graph, note: Note) -> None:
    """Add to a described kernel what it runs around its loops, or in the turns of its search."""
    if kernel["name"] == SEARCH:
        kernel["turns"] = Tails(g, note.routines).turns()
    if re.match(TAILED, kernel["name"]):
        known = argument_of(kernel["name"], note)
        plain = with_argument(g, known, thread_of(kernel["name"])) if known else g
        around = Tails(plain, note.routines, whole=g)
        for loop in kernel["loops"]:
            if loop["kind"] == "loop":
                loop["tails"] = around.around(int(loop["at"], 16))


class Tails:
    """The serial tails of one kernel."""

    def __init__(self, g: Graph, routines: dict[int, str] | None = None, whole: Graph | None = None) -> None:
        """Prepare the tails of a kernel.

        routines: the functions of ours that it calls, by address. whole: the complete graph, if `g` lacks the edges
        that a plain call never takes; unrolled loops are looked up in it.
        """
        self.g, self._whole = g, whole or g
        self._routines = {at for at, name in (routines or {}).items() if not re.search(FALLBACKS, name)}
        self._avoided = self._unrolled() | self._sweeps()
        self._weights: dict[int, float] = {}
        self._bodies: dict[int, Code] = {}

    def _routine(self, at: int) -> Code:
        """Return the longest path through the routine that begins at this address."""
        if at not in self._bodies:
            begin = next(b for b in range(len(self.g.spans)) if self.g.address(b) == at)
            path = longest(self.g, [begin], lambda b: not self.g.once(b), self._weight)
            self._bodies[at] = [x for b in path for x in self._run(b)]
        return self._bodies[at]

    def _run(self, b: int) -> Code:
        """Return a block's instructions; each call of a routine of ours is followed by the routine's."""
        run: Code = []
        for x in self.g.block(b):
            run.append(x)
            target = re.search(r"0x[0-9a-f]+", x.args) if x.head == "CALL" else None
            if target and int(target[0], 16) in self._routines:
                run += self._routine(int(target[0], 16))
        return run

    def _of(self, body: set[int]) -> Code:
        return [x for b in body for x in self.g.block(b)]

    def _inside(self, header: int) -> bool:
        return any(h in self._whole.loops[header] for h in self._whole.loops if h != header)

    def _unrolled(self) -> set[int]:
        """Return the blocks of innermost loops over several items per thread."""
        found: set[int] = set()
        for header, body in self._whole.loops.items():
            code = self._of(body)
            loads, collective = sum(x.head in ("LDG", "LD") for x in code), any(x.head in ("BAR", "CALL") for x in code)
            if not self._inside(header) and loads >= ITEMS and not collective and not _streams(code):
                found |= body
        return found

    def _sweeps(self) -> set[int]:
        """Return the blocks of streaming loops, and of the loop over chunks around each."""
        streaming = {h: body for h, body in self.g.loops.items() if _streams(self._of(body))}
        found: set[int] = set()
        for header, body in streaming.items():
            if not any(h in body for h in streaming if h != header):
                around = [other for h, other in self.g.loops.items() if h != header and header in other]
                found |= body | min(around, key=len, default=set())
        return found

    def _weight(self, b: int) -> float:
        if b not in self._weights:
            run = schedule(self._run(b))
            self._weights[b] = clocks(run, BANDS.index("middle"), all_results=True) - DETOUR * (b in self._avoided)
        return self._weights[b]

    def around(self, at: int) -> dict[str, dict]:
        """Return the tails around the streaming loop at this address.

        ahead: up to the wait for the launch before. begin: from there to the loop. report: from the loop to the ticket
        that finds the last block. rest: what the last block then runs.
        """
        g = self.g
        header = next(b for b in range(len(g.spans)) if g.address(b) == at)
        loop = g.outermost(header)
        exits = [x for b in sorted(loop) for x in g.next[b] if x not in loop]
        begin = [x for b in longest(g, [g.block_of[0]], header.__eq__, self._weight)[:-1] for x in self._run(b)]
        wait = next((i + 1 for i, x in enumerate(begin) if x.head == "ACQBULK"), 0)
        code = [x for b in longest(g, exits, lambda b: not g.once(b), self._weight) for x in self._run(b)]
        ticket = next((i + 1 for i, x in enumerate(code) if x.head in ("ATOM", "ATOMG")), 0)
        return {
            "ahead": summary(begin[:wait]),
            "begin": summary(begin[wait:]),
            "report": summary(code[:ticket]),
            "rest": summary(code[ticket:]),
        }

    def turns(self) -> dict[str, dict]:
        """Return the tails of a kernel whose largest loop makes a pass over its rows in each turn.

        begin: before that loop. turn: one turn of it without the pass. rest: after it.
        """
        g = self.g
        header = max(g.loops, key=lambda h: len(g.loops[h]))
        body, blocks = g.loops[header], range(len(g.spans))
        exits = [x for b in sorted(body) for x in g.next[b] if x not in body]
        latches = {b for b in body if header in g.next[b]}
        begin = longest(g, [g.block_of[0]], header.__eq__, self._weight)[:-1]
        turn = longest(g, [header], latches.__contains__, self._weight, [b for b in blocks if b not in body])
        rest = longest(g, exits, lambda b: not g.once(b), self._weight, body)
        paths = {"begin": begin, "turn": turn, "rest": rest}
        return {name: summary([x for b in path for x in self._run(b)]) for name, path in paths.items()}


def _streams(code: Code) -> bool:
    return any(wide(x.word, async_kernel=True) for x in code)


def summary(run: Code) -> dict:
    """Return a path's instructions, also by class, their lines of code, and one warp's clocks from kind to hard.

    The clocks end when all results are in.
    """
    steps = schedule(run)
    return {
        "instr": len(run),
        "lines": len({x.at // LINE for x in run}),
        "clocks": [round(clocks(steps, band, all_results=True)) for band in range(len(BANDS))],
        "classes": dict(Counter(kind for kind, _, _ in steps)),
        "calls": sum(x.head == "CALL" for x in run),
    }

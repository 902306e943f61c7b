# SPDX-License-Identifier: Apache-2.0
"""Streaming loops of a kernel, the cost of an iteration, and the bandwidth that its instructions allow.

A loop streams if it has wide loads (LDG.*.128 or wider; LDG.64 only with .CONSTANT; LDS.128 in kernels with bulk or
asynchronous copies). Its hot path is that of bf16 rows with all exponentials, with the fewest instructions of any path
that does not read entry by entry. Inner loops without wide loads count as one iteration, calls as one instruction.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tools.machine_code.control_flow import Graph, flood
from tools.machine_code.gpus import ceilings
from tools.machine_code.instructions import Code, pipe, wide
from tools.machine_code.paths import State, Ways, Weight, Weights, hot_state

MAX_LOOP, MAX_STRAIGHT = 20_000, 6_000  # instructions of a loop (a larger one is a kernel's outer loop), blocks
COUNTED = {"MUFU", "BSSY", "BRA"}


def streaming_loops(g: Graph, weights: Weights, async_kernel: bool) -> Iterator[dict]:
    """Yield each loop that has wide loads itself, innermost first, with the cost of its hot path.

    Straight-line code with wide loads outside of loops follows.
    """
    of = weights.of
    streaming = {h: body for h, body in g.loops.items() if any(of[b].bytes for b in body)}
    covered: set[int] = set()
    for h, body in sorted(streaming.items(), key=lambda x: len(x[1])):
        inner = [other for k, other in streaming.items() if k != h and k in body and len(other) < len(body)]
        held = set().union(*inner) if inner else set()
        if not any(of[b].bytes for b in body if b not in held):
            continue  # all its wide loads are in inner loops
        covered |= {b for b in body if of[b].bytes}
        if sum(of[b].instructions for b in body) <= MAX_LOOP and (loop := _loop(g, weights, h, body, async_kernel)):
            yield {"kind": "nest" if inner else "loop"} | loop
    loose = {b for b in range(len(of)) if of[b].bytes and b not in covered and b in g.place}
    if loose:
        yield from _straight(g, weights, covered, loose, async_kernel)


def _loop(g: Graph, weights: Weights, h: int, body: set[int], async_kernel: bool) -> dict | None:
    weight = weights.of.__getitem__
    ends = {u for u, x in g.back if x == h}
    aligned = weights.aligned(body, h)
    ways = Ways(g, aligned, h, ends & aligned, weight)
    hot = hot_state(ways.states)
    if hot is None:
        ways = Ways(g, body, h, ends, weight)
        hot = hot_state(ways.states)
    if hot is None:
        return None
    most = Ways(g, aligned, h, ends & aligned, weight, longest=True).states
    run = [x for b in ways.blocks(hot) for x in g.block(b)]
    counts = count(run, async_kernel)
    return {
        "at": f"{g.address(h):05x}",
        "static": sum(weights.of[b].instructions for b in body),
        "instr_most": most.get(hot, counts["instr"]),
        "rows": max(_rows(ways.states, hot), 2 if len(pointers(run, async_kernel)) == 2 else 1),
    } | _costs(counts, run, async_kernel)


def _straight(g: Graph, weights: Weights, covered: set[int], loose: set[int], async_kernel: bool) -> Iterator[dict]:
    """Yield straight-line code: the hot path (hot_state) from its first wide load to its last MUFU or wide load."""

    def weight(b: int) -> Weight:
        w = weights.of[b]
        return w if b not in covered else Weight(0, 0, 0, w.instructions)

    for root in g.roots:
        body = flood([root], g.next.__getitem__)
        if len(body) > MAX_STRAIGHT or not body & loose:
            continue
        ways = Ways(g, body, root, [b for b in g.order if not g.next[b] and b in body], weight)
        hot = hot_state(ways.states)
        if not hot or not hot[1]:
            continue
        run = [x for b in ways.blocks(hot) if b not in covered for x in g.block(b)]
        moves = [i for i, x in enumerate(run) if wide(x.word, async_kernel)]
        last = max(i for i, x in enumerate(run) if x.word.startswith("MUFU") or wide(x.word, async_kernel))
        run = run[moves[0] : last + 1]
        c = count(run, async_kernel)
        loop = {"kind": "straight", "at": f"{run[0].at:05x}", "static": c["instr"], "instr_most": c["instr"], "rows": 1}
        yield loop | _costs(c, run, async_kernel)


def _costs(counts: Counter[str], run: Code, async_kernel: bool) -> dict:
    return {
        "instr": counts["instr"],
        "bytes": counts["bytes"],
        "per16": round(counts["instr"] * 16 / counts["bytes"], 1),
        "batches": batches(run, async_kernel),
        "counts": dict(counts),
    }


def of_two_bytes(loop: dict) -> bool:
    """Return whether an iteration has one exponential per two bytes: rows of bfloat16 or float16 logits."""
    return loop["bytes"] == 2 * loop["counts"].get("MUFU", 0)


def count(code: Code, async_kernel: bool = False) -> Counter[str]:
    """Count instructions by kind and by pipe, and the bytes of one thread's wide loads."""
    c: Counter[str] = Counter()
    for x in code:
        head, moved = x.head, wide(x.word, async_kernel)
        c["instr"] += 1
        c["bytes"] += moved
        c["pipe_" + pipe(head)] += 1
        if head in COUNTED or head == "BRX":
            c["BRA" if head == "BRX" else head] += 1
        c["LDS"] += head == "LDS" and not moved
        c["F2F64"] += head == "F2F" and "F64" in x.word
        c["DOUBLE"] += head in ("DADD", "DFMA", "DMUL")
    return Counter({name: n for name, n in c.items() if n or name == "bytes"})


def pointers(run: Code, async_kernel: bool) -> set[str]:
    """Return the pointers of a path's wide loads, traced back one definition; offsets and increments are ignored.

    Two addresses with the same set of offsets count as two pointers, whatever their definitions.
    """
    found, offsets = set(), defaultdict(set)
    for i, x in enumerate(run):
        m = re.search(r"\[(R\d+)(?:\.64)?(?:\+(UR\d+))?(?:\+(0x[0-9a-f]+))?", x.args)
        if not m or not (x.word.startswith("LDG") and wide(x.word, async_kernel)):
            continue
        pointer = m[1] + (m[2] or "")
        offsets[pointer].add(m[3])
        for y in reversed(run[:i]):
            if re.match(rf"{m[1]}\b", y.args) and not y.word.startswith(("ST", "RED", "BRA")):
                sources = y.args.split(",", 1)[1] if "," in y.args else ""
                rest = re.findall(r"c\[0x0\]\[0x[0-9a-f]+\]|\bU?R\d+\b", sources)
                if m[1] not in rest and rest:
                    pointer = rest[-1]
                break
        found.add(pointer)
    one, *others = offsets.values() or [set()]
    return set(offsets) if len(one) > 1 and len(others) == 1 and one == others[0] else found


def batches(run: Code, async_kernel: bool) -> int:
    """Return how many times an iteration waits for memory, one after the other.

    A new wait begins with a wide load that is issued after a value loaded earlier in the iteration was used.
    """
    waiting: set[int] = set()
    used, n = True, 0
    for x in run:
        registers = [int(r) for r in re.findall(r"\bR(\d+)", x.args)]
        size = wide(x.word, async_kernel) if x.word.startswith("LDG") else 0
        if waiting & set(registers[1:] if size else registers):
            used, waiting = True, set()
        if size:
            n += used
            used = False
            waiting |= {registers[0] + i for i in range(size // 4)}
    return max(n, 1)


def _rows(states: dict[State, int], hot: State) -> int:
    """Return how many rows an iteration reads, found from paths that skip some of them."""
    near = lambda s, i: abs(s[i] / s[0] - hot[i] / hot[0]) < 0.02
    same = [s[0] for s in states if s[0] and near(s, 1) and near(s, 2)]
    return max(1, round(hot[0] / min(same))) if hot[1] else 1


def against(gpu: str, loop: dict, resident: int, threads: int) -> dict:
    """Return a loop's limits on a GPU: the bandwidth that each resource allows, and bytes in flight."""
    rates, bound, of_memory = ceilings(gpu, loop["counts"])
    return {
        "bound_by": bound,
        "ceiling": round(rates[bound] / 1e12, 2),
        "of_hbm": round(of_memory[bound], 2),
        "issue_of_hbm": round(of_memory["issue"], 2),
        "in_flight_kB_per_sm": round(resident * threads * loop["bytes"] / 1024, 1),
    }

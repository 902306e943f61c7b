# SPDX-License-Identifier: Apache-2.0
"""The paths through a kernel that are open to a thread if the kernel's argument is known.

Constants are propagated through registers and predicates along the branches that they leave open (Wegman and Zadeck
1991). Values loaded from memory are unknown, but 64-bit values from shared memory are taken as even. In a plain call
the pointers of rows are even (HACKING.md, "How a row is read"), and machine code tests that bit of nothing else.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from tools.machine_code.control_flow import Graph
from tools.machine_code.instructions import Instruction, bits
from tools.machine_code.operands import operands

MASK = 0xFFFFFFFF
State = dict[str, int]  # registers (32 bits) and predicates (0, 1) with known values; "R4 & 1": a register's lowest bit
Argument = Mapping[int, int]  # bytes of constant bank 0, by address

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "EQ": int.__eq__,
    "NE": int.__ne__,
    "LT": int.__lt__,
    "LE": int.__le__,
    "GT": int.__gt__,
    "GE": int.__ge__,
}


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def _value(text: str, state: State) -> int | None:
    """Return an operand's value, None if it is not known; a predicate's negation is applied."""
    text = text.removesuffix(".reuse")
    if text in ("RZ", "URZ"):
        return 0
    if found := re.fullmatch(r"(!?)(U?P)(\d|T)", text):
        value = 1 if found[3] == "T" else state.get(found[2] + found[3])
        return value if value is None else value ^ bool(found[1])
    if found := re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
        return int(text, 0) & MASK
    if found := re.fullmatch(r"~(U?R\d+)", text):
        value = state.get(found[1])
        return value if value is None else value ^ MASK
    return state.get(text)


def _from_table(table: int, values: list[int | None]) -> int | None:
    """Return the entry for three bits in a table of eight, None if unknown bits leave it open."""
    a, b, c = ((0, 1) if x is None else (x,) for x in values)
    said = {table >> (4 * i + 2 * j + k) & 1 for i, j, k in itertools.product(a, b, c)}
    return said.pop() if len(said) == 1 else None


def _and(*values: int | None) -> int | None:
    return 0 if 0 in values else None if None in values else 1


def _or(*values: int | None) -> int | None:
    return 1 if 1 in values else None if None in values else 0


def _lowest(register: str) -> str:
    return f"{register.removesuffix('.reuse')} & 1"


def _isetp(x: Instruction, parts: list[str], state: State) -> dict[str, int | None]:
    """Return the results of ISETP P, Q, a, b, other[, carry].

    P is the comparison of a and b, joined with `other` by AND or OR. Q is the opposite comparison, joined likewise."""
    names = x.word.split(".")
    left, right, other = (_value(p, state) for p in parts[2:5])
    held = None
    if left is not None and right is not None:
        order = (lambda v: v) if "U32" in names else _signed
        held = int(COMPARE[names[1]](order(left), order(right)))
        if "EX" in names and (names[1] in ("EQ", "NE") or left == right):  # upper halves: if equal, the lower decide
            lower = _value(parts[5], state)
            held = lower if left == right else held
    elif "EX" in names and names[1] == "NE" and _value(parts[5], state) == 1:
        held = 1
    join = _or if "OR" in names else _and
    opposite = None if held is None else 1 - held
    return {parts[0]: join(held, other), parts[1]: join(opposite, other)}


def _lop3(parts: list[str], state: State) -> dict[str, int | None]:
    """Return the results of LOP3 [P,] R, a, b, c, table, other."""
    to = parts.pop(0) if re.fullmatch(r"U?P(\d|T)", parts[0]) else None
    a, b, c = (_value(p, state) for p in parts[1:4])
    table, out = int(parts[4], 16), None
    if table == 0xC0 and (0 in (a, b) or (b == 1 and state.get(_lowest(parts[1])) == 0)):
        out = 0
    elif a is not None and b is not None and c is not None:
        out = sum((table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1)) & 1) << n for n in range(32))
    some = None if out is None else int(out != 0)
    return {parts[0]: out} | ({to: _or(some, _value(parts[5], state))} if to else {})


def _prmt(parts: list[str], state: State) -> int | None:
    a, how, c = (_value(p, state) for p in parts[1:4])
    if how is None:
        return None
    out = 0
    for n in range(4):
        pick = how >> 4 * n & 15
        source = a if pick & 7 < 4 else c
        if source is None:
            return None
        byte = source >> 8 * (pick & 3) & 255
        out |= (255 * (byte >> 7) if pick & 8 else byte) << 8 * n
    return out


def _constants(x: Instruction, parts: list[str], argument: Argument) -> dict[str, int | None]:
    at = re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", parts[1])
    register = re.fullmatch(r"(U?R)(\d+)", parts[0])
    if not register:
        return {}
    size = bits(x.word) // 8
    found: dict[str, int | None] = {}
    for i in range(max(1, size // 4)):
        byte = [argument.get(int(at[1], 16) + 4 * i + k) if at else None for k in range(min(size, 4))]
        whole = None if None in byte else sum((b or 0) << 8 * k for k, b in enumerate(byte))
        found[f"{register[1]}{int(register[2]) + i}"] = whole
    return found


def _results(
    x: Instruction, parts: list[str], state: State, argument: Argument, thread: int | None
) -> dict[str, int | None]:
    """Return what is known of an instruction's results. Results that are missing are not known."""
    get = lambda i: _value(parts[i], state)
    if x.head in ("LDC", "ULDC", "LDCU"):
        return _constants(x, parts, argument)
    if x.head == "S2R" and parts[1] == "SR_TID.X":
        return {parts[0]: thread}
    if x.word in ("SHF.R.U32.HI", "SHF.R.S32.HI") and parts[1] == "RZ":
        by, value = get(2), get(3)
        if by is None or value is None:
            return {}
        return {parts[0]: (value if "U32" in x.word else _signed(value)) >> by & MASK}
    if x.head in ("MOV", "UMOV", "R2UR"):
        return {parts[0]: get(-1)}
    if x.word in ("IMAD.MOV.U32", "IMAD.U32") and {"RZ"} == set(parts[1:3]):
        return {parts[0]: get(3)}
    if x.head in ("ISETP", "UISETP"):
        return _isetp(x, parts, state)
    if x.head in ("PLOP3", "UPLOP3"):
        values = [_value(p, state) for p in parts[2:5]]
        return {to: _from_table(int(how, 16), values) for to, how in zip(parts[:2], parts[5:7])}
    if x.head in ("LOP3", "ULOP3"):
        return _lop3(parts, state)
    if x.head in ("SEL", "USEL") and (which := get(3)) is not None:
        return {parts[0]: get(1 if which else 2)}
    if x.head in ("PRMT", "UPRMT"):
        return {parts[0]: _prmt(parts, state)}
    if x.word == "CS2R" and parts[1] == "SRZ":
        return dict.fromkeys(_pair(parts[0]), 0)
    return {}


def _pair(name: str) -> list[str]:
    kind = name.rstrip("0123456789")
    return [name, f"{kind}{int(name.removeprefix(kind)) + 1}"]


def step(x: Instruction, state: State, argument: Argument, thread: int | None = 0) -> None:
    """Update the state to what is known after an instruction. If `thread` is None, the thread's index is not known."""
    runs = _value(x.guard.removeprefix("@"), state) if x.guard else 1
    if runs == 0:
        return
    if x.head == "CALL":
        state.clear()
        return
    parts = [part.strip() for part in x.args.split(",")]
    found = _results(x, parts, state, argument, thread)
    for name in operands(x)[0]:
        value = found.get(name)
        state.pop(_lowest(name), None)
        if value is None or (runs is None and state.get(name) != value):
            state.pop(name, None)
        else:
            state[name] = value
    if x.head == "LDS" and not x.guard and (words := bits(x.word) // 32) > 1:
        kind, first = parts[0].rstrip("0123456789"), int(parts[0].lstrip("UR"))
        state |= {_lowest(f"{kind}{first + i}"): 0 for i in range(0, words, 2)}


def with_argument(g: Graph, argument: Argument, thread: int | None = 0) -> Graph:
    """Return the graph with only the edges that are open to a thread; to any thread if `thread` is None."""
    before: dict[int, State] = {b: {} for b in g.roots}
    ways: dict[int, set[int]] = {}
    work = list(g.roots)
    while work:
        b = work.pop()
        state = dict(before[b])
        for x in g.block(b)[:-1]:
            step(x, state, argument, thread)
        last = g.block(b)[-1]
        taken = _taken(last, state)
        step(last, state, argument, thread)
        for to in _followed(g, b, last, taken):
            known = before.get(to)
            joined = state if known is None else {k: v for k, v in known.items() if state.get(k) == v}
            if known is None or joined != known or to not in ways.setdefault(b, set()):
                before[to] = dict(joined)
                work.append(to)
            ways.setdefault(b, set()).add(to)
    return g.along([[x for x in g.next[b] if x in ways.get(b, ())] for b in range(len(g.spans))])


def _taken(x: Instruction, state: State) -> int | None:
    """Return whether an instruction's branch is taken; None if that is not known."""
    guard = _value(x.guard.removeprefix("@"), state) if x.guard else 1
    if x.head != "BRA":
        return guard
    asked = [_value(p.strip(), state) for p in x.args.split(",") if re.fullmatch(r"\s*!?U?P(\d|T)\s*", p)]
    return _and(guard, *asked)


def _followed(g: Graph, b: int, last: Instruction, taken: int | None) -> list[int]:
    if taken is None or last.head not in ("BRA", "EXIT", "RET"):
        return g.next[b]
    through = g.block_of.get(g.spans[b][1])
    if taken:
        return [x for x in g.next[b] if x != through or len(g.next[b]) == 1] if last.head == "BRA" else []
    return [x for x in g.next[b] if x == through]

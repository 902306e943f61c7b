# SPDX-License-Identifier: Apache-2.0
"""The registers and predicates that an instruction writes, and those that it waits for."""

from __future__ import annotations

import re

from tools.machine_code.instructions import ATOMICS, BRANCHES, FP64, STORES, Instruction, bits

SILENT = STORES | BRANCHES | set("BAR MEMBAR ERRBAR CGAERRBAR CCTL NOP DEPBAR NANOSLEEP".split())  # write no register
OPERAND = re.compile(r"\bU?[RP]\d+\b")


def operands(x: Instruction) -> tuple[set[str], set[str]]:
    """Return the registers and predicates that an instruction writes, and those that it waits for."""
    parts = [part.strip() for part in x.args.split(",")]
    names = lambda text: set(OPERAND.findall(text))
    n = 0 if x.head in SILENT else _written(x.head, parts)
    writes = set().union(*map(names, parts[:n])) if n else set()
    first = re.match(r"(U?R)(\d+)$", parts[n - 1].split(".")[0]) if n else None
    if first:
        size = bits(x.word) if x.head in ("LDG", "LD", "LDS", "LDL", "LDC", "ULDC", "LDCU") else 32
        if x.head in FP64 or ".WIDE" in x.word or x.word.startswith(("F2F.F64", "I2F.F64", "F2I.S64", "F2I.U64")):
            size = 64
        if x.head == "CS2R" and ".32" not in x.word:
            size = 64
        writes |= {f"{first[1]}{int(first[2]) + i}" for i in range(1, size // 32)}
    return writes, names(x.guard) | set().union(*map(names, parts[n:]))


def _written(head: str, parts: list[str]) -> int:
    """Return how many operands, from the left, are results: a register, with predicates before or after it."""
    predicate = lambda part: re.fullmatch(r"!?U?P(\d|T)", part) is not None
    if head.endswith("SETP") or head in ("PLOP3", "UPLOP3", "VOTE", "VOTEU"):
        return min(2, len(parts))
    if head in ("SHFL", "LOP3", "ULOP3", "MATCH", *ATOMICS) and predicate(parts[0]):
        return min(2, len(parts))
    n = 1
    while n < len(parts) - 1 and predicate(parts[n]) and not predicate(parts[0]):
        n += 1
    return n

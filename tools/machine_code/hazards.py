# SPDX-License-Identifier: Apache-2.0
"""Registers that are read before they hold what was written: a bug of ptxas that showed on a GPU.

CS2R clears two registers. ptxas 13.0 keeps at least six cycles between it and an arithmetic instruction that reads one
of them. It does not if an instruction between the two writes the same registers under a predicate, as for
``condition ? address : nullptr``. With five cycles an H200 read the old value, so that a null pointer seemed valid.
"""

from __future__ import annotations

from collections.abc import Iterable

from tools.machine_code.instructions import BRANCHES, LSU, Instruction
from tools.machine_code.operands import operands

CYCLES = 6  # from CS2R to an arithmetic instruction that reads its result


def early_reads(code: Iterable[Instruction]) -> list[Instruction]:
    """Return the instructions that read a register less than CYCLES after CS2R wrote it, along straight code.

    Memory instructions are left out, since they read their registers later than others.
    """
    found = []
    since: dict[str, int] = {}  # a register that CS2R wrote -> cycles since then
    for x in code:
        if x.head in BRANCHES - {"BSSY"}:
            since = {}
        elif since or x.word == "CS2R":
            writes, reads = operands(x)
            if x.head not in LSU and not since.keys().isdisjoint(reads):
                found.append(x)
            if not x.guard:
                since = {register: cycles for register, cycles in since.items() if register not in writes}
            if x.word == "CS2R":  # not CS2R.32, whose result is ready earlier
                since |= dict.fromkeys(writes, 0)
        since = {register: cycles + x.stall for register, cycles in since.items() if cycles + x.stall < CYCLES}
    return found

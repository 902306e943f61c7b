# SPDX-License-Identifier: Apache-2.0
"""Registers that are read too early are found: in code that ptxas 13.0 compiled and that failed on an H200, and in code
written by hand."""

import pytest

from tools.machine_code.disassembly import instructions
from tools.machine_code.hazards import early_reads
from tools.machine_code.instructions import Instruction

# Each instruction's second word has the compiler's scheduling: bits 41 to 44 are the cycles until the next instruction.
COMPILED = """
\t\tFunction : draws
        /*1390*/                   CS2R R34, SRZ ;                          /* 0x0000000000227805 */
                                                                            /* 0x000fe4000001ff00 */
        /*13a0*/              @P0 IMAD.WIDE R34, R57, 0x4, R4 ;             /* 0x0000000439220825 */
                                                                            /* 0x000fe200078e0204 */
        /*13b0*/                   FMNMX R58, R42, R59, !PT ;               /* 0x0000003b2a3a7209 */
                                                                            /* 0x000fe40007800000 */
        /*13c0*/                   ISETP.NE.U32.AND P2, PT, R34, RZ, PT ;   /* 0x000000ff2200720c */
                                                                            /* 0x000fe40003f45070 */
"""


def test_what_a_compiler_got_wrong():
    code = instructions(COMPILED.splitlines())["draws"]
    assert [x.stall for x in code] == [2, 1, 2, 2]
    assert [x.at for x in early_reads(code)] == [0x13C0]


CLEAR = ("", "CS2R", "R4, SRZ")
READ = ("", "IADD3", "R9, R5, R1, RZ")  # the second of the two registers
OTHER = ("", "FADD", "R1, R2, R3")


@pytest.mark.parametrize(
    "code, early",
    [
        ([(CLEAR, 5), (READ, 2)], 1),
        ([(CLEAR, 6), (READ, 2)], 0),
        ([(CLEAR, 2), (OTHER, 4), (READ, 2)], 0),
        ([(CLEAR, 2), (OTHER, 2), (READ, 1), (READ, 1)], 2),
        ([(CLEAR, 2), (("@P0", "IMAD.WIDE", "R4, R6, R7, R10"), 2), (READ, 2)], 1),
        ([(CLEAR, 2), (("", "IMAD.WIDE", "R4, R6, R7, R10"), 2), (READ, 2)], 0),  # written again
        ([(CLEAR, 2), (("", "STS.64", "[R1], R4"), 2)], 0),
        ([(CLEAR, 2), (("", "BSSY", "B0, 0x100"), 2), (READ, 2)], 1),
        ([(CLEAR, 2), (("@P1", "BRA", "0x100"), 2), (READ, 2)], 0),
        ([(("", "S2R", "R5, SR_TID.X"), 2), (READ, 2)], 0),
        ([(("", "CS2R.32", "R5, SR_CLOCKLO"), 5), (READ, 2)], 0),
    ],
)
def test_cycles_between(code, early):
    listed = [Instruction(16 * i, *words, stall) for i, (words, stall) in enumerate(code)]
    assert len(early_reads(listed)) == early

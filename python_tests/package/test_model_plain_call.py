# SPDX-License-Identifier: Apache-2.0
"""tools.gpu_model.plain_call: the machine code that a plain call, whose argument is known, can reach."""

import json
import re

import pytest
from support.sass import SCAN, listing

from tools.gpu_model import plain_call, tails
from tools.machine_code.control_flow import Graph
from tools.machine_code.disassembly import instructions
from tools.machine_code.elf import Note
from tools.machine_code.kernels import describe
from tools.machine_code.known import step, with_argument

AT = 0x210
NULL, SOME = bytes(8), (1 << 40).to_bytes(8, "little")


def code(text):
    return instructions(listing(text))["kernel"]


def known(argument):
    return {AT + k: byte for k, byte in enumerate(argument)}


def left(text, argument):
    """Return the heads of the instructions that may still run."""
    g = with_argument(Graph(code(text)), known(argument))
    return [x.head for b in sorted(g.place) for x in g.block(b)]


OPTIONAL = """
ULDC.64 UR4, c[0x0][0x210]
ISETP.NE.U32.AND P0, PT, RZ, UR4, PT
ISETP.NE.AND.EX P0, PT, RZ, UR5, PT, P0
@!P0 BRA none
LDG.E R4, desc[UR8][R2.64]
BRA end
none:
MUFU.EX2 R4, R6
end:
EXIT
"""


def test_a_pointer_that_is_known():
    assert {"LDG", "MUFU"} <= set(left(OPTIONAL, b""))
    assert "LDG" not in left(OPTIONAL, NULL) and "MUFU" in left(OPTIONAL, NULL)
    assert "LDG" in left(OPTIONAL, SOME) and "MUFU" not in left(OPTIONAL, SOME)


def test_what_ways_that_meet_agree_on_is_known():
    """P0 has the same value on both paths and stays known. R5 has another value on each, so that it becomes unknown."""
    text = """
LDC R0, c[0x0][0x210]
LDG.E R1, desc[UR8][R2.64]
ISETP.NE.AND P1, PT, R1, RZ, PT
ISETP.EQ.AND P0, PT, R0, 0x7, PT
IMAD.MOV.U32 R5, RZ, RZ, 0x1
@P1 BRA other
IMAD.MOV.U32 R5, RZ, RZ, 0x2
other:
@P0 BRA end
MUFU.EX2 R4, R6
end:
ISETP.EQ.AND P2, PT, R5, 0x1, PT
@P2 EXIT
DADD R6, R6, R6
EXIT
"""
    assert "MUFU" not in left(text, b"\7\0\0\0") and "MUFU" in left(text, b"\6\0\0\0")
    assert "DADD" in left(text, b"\7\0\0\0")


def test_a_loop_forgets_what_its_trips_change():
    text = """
IMAD.MOV.U32 R0, RZ, RZ, 0x1
again:
ISETP.EQ.AND P0, PT, R0, 0x1, PT
@!P0 BRA behind
IMAD.MOV.U32 R0, RZ, RZ, 0x2
BRA again
behind:
MUFU.EX2 R4, R6
EXIT
"""
    assert "MUFU" in left(text, b"")


@pytest.mark.parametrize(
    "before, line, after",
    [
        ({}, "LDC.64 R4, c[0x0][0x210]", {"R4": 0, "R5": 256}),
        ({}, "ULDC.U8 UR4, c[0x0][0x215]", {"UR4": 1}),
        ({"R4": 3}, "LDC R4, c[0x0][R2+0x210]", {}),
        ({}, "S2R R3, SR_TID.X", {"R3": 0}),
        ({}, "CS2R R4, SRZ", {"R4": 0, "R5": 0}),
        ({"R4": 1}, "S2R R4, SR_CTAID.X", {}),
        ({"R4": 1, "R8": 2}, "LDG.E.64 R4, desc[UR8][R2.64]", {"R8": 2}),
        ({"R1": 1 << 31}, "ISETP.LT.AND P0, P1, R1, RZ, PT", {"R1": 1 << 31, "P0": 1, "P1": 0}),
        ({"R1": 1 << 31}, "ISETP.LT.U32.AND P0, PT, R1, RZ, PT", {"R1": 1 << 31, "P0": 0}),
        ({"P1": 0}, "ISETP.LT.AND P0, PT, R1, RZ, P1", {"P1": 0, "P0": 0}),
        ({"P1": 0}, "ISETP.LT.OR P0, PT, R1, RZ, !P1", {"P1": 0, "P0": 1}),
        ({"R1": 5, "P2": 1}, "ISETP.GE.U32.AND.EX P0, PT, R1, 0x5, PT, P2", {"R1": 5, "P2": 1, "P0": 1}),
        ({"R1": 5, "P2": 0}, "ISETP.GE.U32.AND.EX P0, PT, R1, 0x5, PT, P2", {"R1": 5, "P2": 0, "P0": 0}),
        ({"P2": 1}, "ISETP.NE.AND.EX P0, PT, R1, RZ, PT, P2", {"P2": 1, "P0": 1}),
        ({"P0": 0}, "PLOP3.LUT P0, PT, P0, P3, PT, 0x8, 0x0", {}),
        ({}, "PLOP3.LUT P0, PT, PT, PT, PT, 0x80, 0x0", {"P0": 1}),
        ({"P1": 0}, "PLOP3.LUT P0, PT, P1, P2, PT, 0x80, 0x0", {"P1": 0, "P0": 0}),
        ({"R1": 0}, "LOP3.LUT P0, R2, R1, R9, RZ, 0xc0, !PT", {"R1": 0, "R2": 0, "P0": 0}),
        ({"R1": 6}, "LOP3.LUT R2, R1, 0x3, RZ, 0x3c, !PT", {"R1": 6, "R2": 5}),
        ({"R1": 6, "P0": 0}, "SEL R2, R9, R1, P0", {"R1": 6, "P0": 0, "R2": 6}),
        ({"R1": 0x80FF}, "PRMT R2, R1, 0x9910, RZ", {"R1": 0x80FF, "R2": 0xFFFF80FF}),
        ({"R1": 0x140}, "SHF.R.U32.HI R2, RZ, 0x5, R1", {"R1": 0x140, "R2": 10}),
        ({"P0": 0, "R2": 4}, "@P0 IMAD.MOV.U32 R2, RZ, RZ, 0x1", {"P0": 0, "R2": 4}),
        ({"R2": 4}, "@P0 IMAD.MOV.U32 R2, RZ, RZ, 0x1", {}),
        ({"R2": 1}, "@P0 IMAD.MOV.U32 R2, RZ, RZ, 0x1", {"R2": 1}),
        ({"R2": 1, "P0": 1}, "CALL.REL.NOINC 0x100", {}),
        ({}, "LDS.128 R4, [R3+0x10]", {"R4 & 1": 0, "R6 & 1": 0}),
        ({}, "LDS R4, [R3+0x10]", {}),
        ({}, "@P0 LDS.64 R4, [R3+0x10]", {}),
        ({"R4 & 1": 0}, "IADD3 R4, R4, 0x1, RZ", {}),
        ({"R4 & 1": 0}, "LOP3.LUT R5, R4.reuse, 0x1, RZ, 0xc0, !PT", {"R4 & 1": 0, "R5": 0}),
        ({"R4 & 1": 0}, "LOP3.LUT R5, R4, 0x3, RZ, 0xc0, !PT", {"R4 & 1": 0}),
    ],
)
def test_what_is_known_behind_an_instruction(before, line, after):
    [x] = code(line)
    step(x, state := dict(before), known(SOME))
    assert state == after


def test_a_thread_that_is_not_known():
    [x] = code("S2R R3, SR_TID.X")
    for thread, after in ((0, {"R3": 0}), (32, {"R3": 32}), (None, {})):
        step(x, state := {}, known(SOME), thread)
        assert state == after
    assert plain_call.thread_of("verify_chain::verify_positions") is None
    assert plain_call.thread_of("verify_chain::finish_requests") == 0


def test_rows_of_a_plain_call_have_no_views():
    """A row with a view has an odd pointer, which the kernel keeps in shared memory."""
    text = """
LDS.64 R20, [R3+0x8f0]
LOP3.LUT R37, R20, 0x1, RZ, 0xc0, !PT
ISETP.NE.U32.AND P0, PT, R37, 0x1, PT
ISETP.NE.U32.AND.EX P0, PT, RZ, RZ, PT, P0
@P0 BRA plain
LD.E.64 R42, desc[UR6][R20.64+0x17]
plain:
MUFU.EX2 R4, R6
EXIT
"""
    assert left(text, SOME)[-2:] == ["MUFU", "EXIT"] and "LD" not in left(text, SOME)
    assert "LD" in left(text.replace("LDS.64 R20", "LDG.E.64 R20"), SOME)


def test_a_tail_of_a_plain_call_is_shorter():
    """A kernel of verify_chain whose argument has no `present`."""
    text = SCAN.replace("end:\n", "end:\nULDC.64 UR6, c[0x0][0x228]\nISETP.NE.U32.AND P4, PT, RZ, UR6, PT\n")
    text = text.replace("STG", "@!P4 BRA plain\nMUFU.EX2 R14, R12\nplain:\nSTG", 1)
    rest = {}
    for name in ("verify_chain::finish_requests", "row_stats::scan<false>"):
        kernel = describe(name, code(text), Note(40, threads=256, argument=AT), also=tails.add_tails)
        rest[name] = kernel["loops"][0]["tails"]["rest"]["classes"]
    assert "special" in rest["row_stats::scan<false>"] and "special" not in rest["verify_chain::finish_requests"]


@pytest.mark.slow
def test_the_argument_is_what_the_headers_make_of_it():
    assert json.loads(plain_call.FILE.read_text()) == plain_call.printed()


def test_kernels_are_named_as_they_are():
    folder = plain_call.HERE.parents[1] / "csrc/ops/verify_chain"
    text = "".join(path.read_text() for path in folder.glob("*.cu*"))
    for name in plain_call.KERNELS:
        assert re.search(rf"__global__ void .*\b{name.partition('<')[0]}\(const Step s\)", text), name

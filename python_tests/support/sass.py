# SPDX-License-Identifier: Apache-2.0
"""Machine code written by hand in the form that cuobjdump prints: one instruction per line, and `name:` for a label."""

import re

STEP = 16  # bytes per instruction


def listing(text, function="kernel"):
    lines = [line.split("#")[0].strip() for line in text.strip().splitlines()]
    code, labels = [], {}
    for line in filter(None, lines):
        if line.endswith(":"):
            labels[line[:-1]] = f"0x{STEP * len(code):04x}"
        else:
            code.append(line)
    place = lambda m: labels.get(m[0], m[0])
    shown = [re.sub(r"\b[a-z_]+\b", place, line) for line in code]
    body = [f"        /*{STEP * i:04x}*/                   {line} ;  /* 0x0 */" for i, line in enumerate(shown)]
    return [f"\t\tFunction : {function}", "\t.headerflags\t@EF_CUDA_SM90", *body]


# A loop over a row, 16 bytes per iteration. It unpacks eight bf16 entries, and computes their exponentials unless P1
# skips them. After the loop, the last block to take a ticket runs one of two paths, of which the first is the longer.
UNPACK = "\n".join(f"IMAD.U32 R{20 + i}, R{8 + i // 2}, 0x10000, RZ" for i in range(8))
EXPONENTIALS = "\n".join(f"MUFU.EX2 R{30 + i}, R{20 + i}" for i in range(8))
SCAN = f"""
S2R R0, SR_TID.X
LDC.64 R2, c[0x0][0x210]
ISETP.GE.AND P0, PT, R0, 0x100, PT
@P0 BRA behind
loop:
LDG.E.128.CONSTANT R8, desc[UR4][R2.64]
{UNPACK}
ISETP.NE.AND P1, PT, R1, RZ, PT
@P1 BRA next
{EXPONENTIALS}
next:
IADD3 R0, R0, 0x100, RZ
ISETP.GE.AND P0, PT, R0, R7, PT
@!P0 BRA loop
behind:
MEMBAR.SC.GPU
BAR.SYNC.DEFER_BLOCKING 0x0
ATOMG.E.ADD.STRONG.GPU PT, R4, desc[UR4][R2.64], R5
ISETP.NE.AND P2, PT, R4, R6, PT
@P2 EXIT
LDG.E R10, desc[UR4][R2.64+0x10]
ISETP.GT.AND P3, PT, R10, RZ, PT
@P3 BRA short
DADD R12, R10, R10
DADD R12, R12, R12
DFMA R12, R12, R12, R12
BRA end
short:
FADD R12, R10, R10
end:
STG.E desc[UR4][R2.64], R12
EXIT
"""

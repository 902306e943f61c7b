# SPDX-License-Identifier: Apache-2.0
"""The hot loops stay within the limits of gates/loops.py: no more instructions, divergence or shared loads than at
present."""

import pytest
from gates import loops
from support.sass import EXPONENTIALS, SCAN, listing

from specdec_kernels import backends
from tools.machine_code.disassembly import cuobjdump, instructions
from tools.machine_code.elf import Note
from tools.machine_code.kernels import analyse, describe

NONE = loops.Limit(0, 0, 0, 0, 0)
TINY = loops.Loop("tiny", 1, 4, loops.ONE_ROW, loops.Limit(88, 0, 0, 5, 1), NONE, rest=NONE, copies=1)
MAIN = SCAN.replace("LDG.E.128.CONSTANT R8, desc[UR4][R2.64]", "{}")  # four loads of 16 bytes make an iteration of 64


def tiny(before="", between="", name="tiny", registers=40):
    """Return the scan written by hand, 64 bytes per iteration, with something before its exponentials or between its
    loads."""
    loads = f"\n{between}".join(f"LDG.E.128.CONSTANT R{40 + 4 * i}, desc[UR4][R2.64+{16 * i:#x}]" for i in range(4))
    text = MAIN.format(loads).replace(EXPONENTIALS, before + "\n".join([EXPONENTIALS] * 4))
    code = instructions(listing(text))["kernel"]
    return describe(name, code, Note(registers=registers, threads=256))


def limits(per16, **others):
    return TINY._replace(before_sm_100=loops.Limit(per16, 0, 0, 5, 1)._replace(**others))


def test_a_loop_within_its_limits_passes():
    kernel = tiny()
    per16 = kernel["loops"][0]["per16"]
    assert loops.broken([kernel], "sm_90", [limits(per16)]) == []
    assert f"1 row: per16 {per16:g} bssy 0 lds 0 bra 2 waits 1; at most" in loops.write([kernel], "sm_90", [TINY])


def test_the_loop_over_the_rest_has_a_limit_of_its_own():
    whole, rest = tiny(), tiny("FADD R60, R60, R60\n" * 400)
    whole["loops"] += rest["loops"]
    loose = limits(whole["loops"][0]["per16"] + 1)._replace(rest=loops.Limit(300, 0, 0, 5, 1))
    assert loops.broken([whole], "sm_90", [loose]) == []
    assert "1 of 2 loops over 1 row found" in loops.broken([tiny()], "sm_90", [loose._replace(copies=2)])[0]
    tight = loose._replace(rest=loops.Limit(100, 0, 0, 5, 1))
    assert "at most 100" in loops.broken([whole], "sm_90", [tight])[0]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"before": "LDS R50, [R51]\n"}, "lds 1, at most 0"),
        ({"before": "BSSY.RECONVERGENT B0, next\nBSYNC.RECONVERGENT B0\n"}, "bssy 1, at most 0"),
        ({"before": "FADD R60, R60, R60\n" * 8}, "per16"),
        ({"before": "ISETP.NE.AND P5, PT, R1, RZ, PT\n@P5 BRA next\n" * 4}, "bra"),
        ({"between": "FADD R60, R40, R40\n"}, "waits 2, at most 1"),
    ],
)
def test_a_worse_loop_is_refused(change, said):
    right = tiny()
    limit = limits(right["loops"][0]["per16"] + 1)
    assert loops.broken([right], "sm_90", [limit]) == []
    found = loops.broken([tiny(**change)], "sm_90", [limit])
    assert any(said in problem for problem in found), found


def test_fewer_blocks_or_no_loop_are_refused():
    limit = limits(100)
    assert "3 blocks fit an SM, 4 did" in loops.broken([tiny(registers=80)], "sm_90", [limit])[0]
    assert loops.broken([tiny(name="renamed")], "sm_90", [limit]) == ["tiny sm_90: no loop over 1 row found"]
    assert loops.broken([tiny()], "sm_90", [limit._replace(rows=2)]) == ["tiny sm_90: no loop over 2 rows found"]
    assert loops.broken([tiny()], "sm_100", [limit])  # newer GPUs have their own limits


def test_targets_are_below_the_limits():
    """Limits should come down to the targets. One-row targets leave room for an H200's memory bandwidth."""
    for loop in loops.LOOPS:
        for limit in (loop.before_sm_100, loop.from_sm_100):
            assert all(target <= most for target, most in zip(loop.target, limit))
    clocks_per_16_bytes = lambda instructions: instructions / 4 / 0.8  # of a warp that uses 0.8 of the issue slots
    bandwidth = lambda instructions: 512 / clocks_per_16_bytes(instructions) * 132 * 1.75e9
    assert bandwidth(loops.ONE_ROW.per16) > 1.3 * 4.8e12 * 0.98 and bandwidth(loops.TWO_ROWS.per16) > 4.8e12 * 0.98


@pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump beside nvcc or in a triton package")
@pytest.mark.skipif(not backends._CUDA_LIBRARY.exists(), reason="_C_cuda.so was not built")
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_hot_loops_keep_their_limits(arch):
    built = ["sm_" + x.removesuffix("+PTX").rstrip("af").replace(".", "") for x in backends.cuda_archs()]
    if arch not in built:
        pytest.skip(f"_C_cuda.so has machine code for {', '.join(built)}")
    kernels = analyse(backends._CUDA_LIBRARY, arch, only=loops.KERNELS)
    print("\n" + loops.write(kernels, arch))
    assert loops.broken(kernels, arch) == []

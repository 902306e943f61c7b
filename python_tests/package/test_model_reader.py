# SPDX-License-Identifier: Apache-2.0
"""tools.gpu_model reads machine code: here a kernel written by hand, whose counts can be checked by eye."""

import pytest
from support.sass import SCAN, UNPACK, listing

from tools.gpu_model import tails
from tools.gpu_model.constants import BANDS
from tools.machine_code.control_flow import TOP, Graph
from tools.machine_code.disassembly import instructions, readable
from tools.machine_code.elf import Note
from tools.machine_code.gpus import ceilings, resident
from tools.machine_code.instructions import Instruction, bits, copies_asynchronously, pipe, unpacks, wide
from tools.machine_code.kernels import describe
from tools.machine_code.loops import batches
from tools.machine_code.operands import operands
from tools.machine_code.paths import Ways, hot_state, weigh

MIDDLE = BANDS.index("middle")


def code(text):
    return instructions(listing(text))["kernel"]


def graph(text=SCAN):
    return Graph(code(text))


def kernel(text=SCAN, **note):
    return describe("row_stats::scan<false>", code(text), Note(registers=40, threads=256, **note), also=tails.add_tails)


def block_at(g, word):
    return next(b for b in range(len(g.spans)) if any(x.word.startswith(word) for x in g.block(b)))


def test_a_listing_is_read():
    [first, second, *_] = code(SCAN)
    assert first == Instruction(0, "", "S2R", "R0, SR_TID.X") and (second.at, second.head) == (16, "LDC")
    branch = next(x for x in code(SCAN) if x.guard == "@!P0")
    loop = next(x for x in code(SCAN) if x.word.startswith("LDG"))
    assert (branch.word, branch.args) == ("BRA", f"0x{loop.at:04x}")
    told = [
        "Function : f",
        "        /*0000*/  @!PT LDS RZ, [RZ] ;",
        "        /*0010*/  STS [R1], R2   &req={0} ?trans1 ;",
    ]
    assert [(x.word, x.args) for x in instructions(told)["f"]] == [("NOP", "RZ, [RZ]"), ("STS", "[R1], R2")]
    assert instructions(listing(SCAN), wanted=lambda function: False) == {}


def test_names_of_kernels():
    file = "N__00000000_14_sample_cuda_cu_40761851_1234"
    function = f"_ZN7specdec53_GLOBAL__{file}5drawsEv"
    assert readable([function, "triton_kernel"])[function].startswith("sample::")
    assert readable([function, "triton_kernel"])["triton_kernel"] == "triton_kernel" and readable([]) == {}


@pytest.mark.parametrize(
    "word, nbytes",
    [("LDG.E.128.CONSTANT", 16), ("LDG.E.64.CONSTANT", 8), ("LDG.E.64", 0), ("LDG.E", 0), ("LDS.128", 0)],
)
def test_what_counts_as_a_row(word, nbytes):
    assert wide(word, async_kernel=False) == nbytes


def test_instructions_by_what_they_do():
    assert wide("LDS.128", async_kernel=True) == 16 and bits("LDG.E.U16") == 16 and bits("LDG.E") == 32
    assert unpacks("IMAD.U32", "R1, R2, 0x10000, RZ") and unpacks("LOP3.LUT", "R1, R2, 0xffff0000, RZ, 0xc0, !PT")
    assert unpacks("HADD2.F32", "-RZ, R2.H0") and not unpacks("IMAD", "R1, R2, R3, RZ")
    pipes = {"FFMA": "fma", "IMAD": "imad", "MUFU": "xu", "DADD": "fp64", "LDS": "lsu", "BSSY": "control"}
    assert {head: pipe(head) for head in pipes} == pipes and pipe("UIADD3") == "uniform" and pipe("IADD3") == "alu"
    assert copies_asynchronously(code("LDGSTS.E.128 [R1], [R2.64]\nEXIT")) and not copies_asynchronously(code(SCAN))


def test_control_flow_and_dominators():
    g = graph()
    loop, latch, behind = block_at(g, "LDG.E.128"), block_at(g, "IADD3"), block_at(g, "MEMBAR")
    exponentials = block_at(g, "MUFU")
    assert sorted(g.next[loop]) == [exponentials, latch] and g.next[exponentials] == [latch]
    assert (g.back, g.loops) == ({(latch, loop)}, {loop: {loop, exponentials, latch}})
    assert g.above[0] == TOP and g.above[latch] == loop and g.above[behind] == 0  # a path to it skips the loop
    assert g.dominates(loop, latch) and not g.dominates(exponentials, latch)
    assert g.forward(latch) == [behind] and g.outermost(latch) == g.loops[loop] and g.outermost(behind) == {behind}
    assert all(g.dominates(0, b) for b in g.order)


def test_indirect_branches_and_calls():
    text = "BRX R2\na:\nFADD R0, R0, R0\nEXIT\nb:\nCALL.REL.NOINC c\nEXIT\nc:\nRET.REL.NODEC R2"
    g = Graph(code(text), {0: [16, 48]})
    assert g.next[0] == [g.block_of[1], g.block_of[3]] and g.block_of[5] in g.roots and len(g.order) == len(g.spans)
    assert len(Graph(code(text)).order) < len(g.order)  # without the notes, the branch's targets are not reached


def test_the_states_of_a_trip():
    g = graph()
    [(header, body)] = g.loops.items()
    ends = {u for u, _ in g.back}
    ways = Ways(g, body, header, ends, weigh(g, False).of.__getitem__)
    assert ways.states == {(16, 0, 8): 14, (16, 8, 8): 22}
    assert hot_state(ways.states) == (16, 8, 8)
    assert ways.blocks((16, 8, 8)) == sorted(body) and len(ways.blocks((16, 0, 8))) == 2
    longest = Ways(g, body, header, ends, weigh(g, False).of.__getitem__, longest=True)
    assert longest.states == ways.states
    assert hot_state([(0, 9, 9)]) is None
    assert hot_state([(16, 8, 8), (16, 16, 8)]) == (16, 8, 8)  # more exponentials than entries: a path that never runs


def test_what_a_loop_costs():
    [loop] = kernel()["loops"]
    assert (loop["kind"], loop["rows"], loop["bytes"], loop["instr"], loop["per16"]) == ("loop", 1, 16, 22, 22.0)
    c = loop["counts"]
    assert (c["MUFU"], c["BRA"], c["pipe_xu"], c["pipe_imad"]) == (8, 2, 8, 8) and "LDS" not in c and "BSSY" not in c
    assert loop["bound_by"] == "mufu"  # 8 per thread at 16 lanes: 16 clocks, and 22 / 4 for issue
    rates, bound, of_memory = ceilings("H200", c)
    assert bound == "mufu" and rates["mufu"] == pytest.approx(16 * 32 / 16 * 132 * 1.75e9)
    assert of_memory["mufu"] == pytest.approx(rates["mufu"] / 4.8e12)


def test_memory_waits_in_turn():
    load = "LDG.E.128.CONSTANT R{}, desc[UR4][R2.64]"
    both = [load.format(8), load.format(12), "FADD R0, R8, R12"]
    in_turn = [load.format(8), "FADD R0, R8, R8", load.format(12), "FADD R0, R12, R0"]
    assert batches(code("\n".join(both)), False) == 1 and batches(code("\n".join(in_turn)), False) == 2


def test_blocks_that_fit():
    assert resident(64, 0, 256) == 4 and resident(32, 0, 256) == 8  # by registers
    assert resident(16, 0, 256) == 8 and resident(16, 100 * 1024, 256) == 2  # by threads, and by shared memory


@pytest.mark.parametrize(
    "line, writes, reads",
    [
        ("FADD R4, R3, R5", {"R4"}, {"R3", "R5"}),
        ("@!P0 IMAD.WIDE R4, R2, 0x4, R6", {"R4", "R5"}, {"P0", "R2", "R6"}),
        ("LDG.E.128 R8, desc[UR4][R2.64+0x10]", {"R8", "R9", "R10", "R11"}, {"UR4", "R2"}),
        ("STG.E desc[UR4][R2.64], R12", set(), {"UR4", "R2", "R12"}),
        ("DFMA R12, R10, R14, R16", {"R12", "R13"}, {"R10", "R14", "R16"}),
        ("ISETP.GE.AND P0, PT, R0, R7, !P3", {"P0"}, {"R0", "R7", "P3"}),
        ("SHFL.UP P1, R5, R4, 0x1, RZ", {"P1", "R5"}, {"R4"}),
        ("ATOMG.E.ADD PT, R4, desc[UR4][R2.64], R5", {"R4"}, {"UR4", "R2", "R5"}),
        ("IADD3 R0, P1, P2, R4, R5, RZ", {"R0", "P1", "P2"}, {"R4", "R5"}),
        ("SEL R0, R1, R2, P0", {"R0"}, {"R1", "R2", "P0"}),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", set(), set()),
        ("CS2R R4, SRZ", {"R4", "R5"}, set()),
        ("CS2R.32 R4, SR_CLOCKLO", {"R4"}, set()),
    ],
)
def test_operands(line, writes, reads):
    [x] = code(line)
    assert operands(x) == (writes, reads)


def clocks(lines, band=MIDDLE, all_results=True):
    return tails.clocks(tails.schedule(code("\n".join(lines))), band, all_results)


def test_clocks_of_a_chain_and_of_a_batch():
    alu, gap, load, fence = (tails.CLOCKS[name][0][MIDDLE] for name in ("alu", "issue", "load", "fence"))
    assert clocks([f"FADD R{i + 1}, R{i}, R{i}" for i in range(10)]) == 10 * alu
    assert clocks([f"FADD R{i}, R20, R21" for i in range(10)]) == 9 * gap + alu
    loads = [f"LDG.E R{i}, desc[UR4][R2.64]" for i in range(8, 11)]
    assert clocks(loads) == 2 * gap + load and clocks(loads, all_results=False) == 3 * gap
    assert clocks(["LDG.E R8, desc[UR4][R2.64]", "FADD R9, R8, R8"]) == load + alu
    assert clocks(["MEMBAR.SC.GPU", "FADD R9, R8, R8"]) == fence + alu
    for lines in (loads, ["MUFU.EX2 R1, R0", "DADD R4, R2, R2"]):
        assert clocks(lines, 0) < clocks(lines, 1) < clocks(lines, 2)


def test_a_tail_is_its_longest_path():
    tail = kernel()["loops"][0]["tails"]
    assert tail["begin"]["instr"] == 4 and tail["begin"]["classes"] == {
        "register": 1,
        "constant": 1,
        "alu": 1,
        "branch": 1,
    }
    assert tail["report"]["classes"] == {"fence": 1, "barrier": 1, "atomic": 1}
    assert tail["rest"]["classes"]["double"] == 3  # the longer of the two paths
    assert tail["rest"]["instr"] == 11 and tail["rest"]["clocks"] == sorted(tail["rest"]["clocks"])


def test_what_runs_before_the_wait_for_the_launch_before_is_ahead():
    before = kernel()["loops"][0]["tails"]
    assert before["ahead"]["instr"] == 0
    after = kernel(SCAN.replace("LDC", "ACQBULK\nLDC", 1))["loops"][0]["tails"]
    assert (after["ahead"]["instr"], after["begin"]["instr"]) == (2, before["begin"]["instr"] - 1)
    assert after["rest"] == before["rest"]


def test_a_tail_walks_through_a_loop_once():
    body = "again:\nMUFU.LG2 R14, R12\nFADD R12, R14, R14\nISETP.NE.AND P4, PT, R12, RZ, PT\n"
    bottom = SCAN.replace("end:\n", f"end:\n{body}@P4 BRA again\n")
    top = SCAN.replace("end:\n", f"end:\n{body}@!P4 BRA done\nFMUL R15, R14, R14\nBRA again\ndone:\n")
    before = kernel()["loops"][0]["tails"]["rest"]
    for text, more in ((bottom, 4), (top, 6)):  # the second loop tests at its head, and exits there
        rest = kernel(text)["loops"][0]["tails"]["rest"]
        assert rest["instr"] == before["instr"] + more and rest["classes"]["special"] == 1


def test_turns_of_a_search():
    """The turns of a search: instructions before the loop over turns, in that loop without its pass over a row, and
    after it."""
    text = f"""
S2R R0, SR_TID.X
DADD R4, R10, R10
turn:
FADD R12, R14, R14
DADD R4, R4, R4
@P0 BRA behind
loop:
LDG.E.128.CONSTANT R8, desc[UR4][R2.64]
{UNPACK}
@!P1 BRA loop
behind:
MEMBAR.SC.GPU
DMUL R4, R4, R4
@P4 BRA turn
STG.E desc[UR4][R2.64], R12
EXIT
"""
    found = describe(tails.SEARCH, code(text), Note(registers=40, threads=256), also=tails.add_tails)["turns"]
    assert {part: turn["instr"] for part, turn in found.items()} == {"begin": 2, "turn": 6, "rest": 2}
    assert found["turn"]["classes"] == {"alu": 1, "double": 2, "branch": 2, "fence": 1}


@pytest.mark.parametrize(
    "name, more", [("_ZN7specdec12leave_totalsEv", 4), ("_ZN7specdec13invalid_statsEv", 1), ("", 1)]
)
def test_a_tail_walks_through_routines(name, more):
    """Our own routines are followed. Fallbacks, and routines that compilers add, count as the call only."""
    text = SCAN.replace("end:\n", "end:\nCALL.REL.NOINC routine\n")
    text = f"{text}\nroutine:\nMUFU.LG2 R14, R12\nFADD R12, R14, R14\nRET.REL.NODEC R2\n"
    routine = next(x.at for x in code(text) if x.word == "MUFU.LG2")
    before = kernel()["loops"][0]["tails"]["rest"]
    rest = kernel(text, routines={routine: name} if name else {})["loops"][0]["tails"]["rest"]
    assert rest["instr"] == before["instr"] + more


def test_a_loop_over_several_items_is_not_entered():
    """The compiler made an unrolled copy of a remainder loop. With one item per thread only the loop itself runs."""
    one = "one:\nLDG.E R14, desc[UR4][R2.64]\nFADD R12, R14, R12\n@P4 BRA one\n@P5 BRA done\n"
    loads = "\n".join(f"LDG.E R{14 + i}, desc[UR4][R2.64]" for i in range(tails.ITEMS))
    text = SCAN.replace("end:\n", f"end:\n{one}four:\n{loads}\n@P4 BRA four\ndone:\n")
    before, rest = (kernel(text)["loops"][0]["tails"]["rest"] for text in (SCAN, text))
    assert rest["classes"]["load"] == before["classes"]["load"] + 1
    no_way_around = text.replace("@P5 BRA done\n", "")
    rest = kernel(no_way_around)["loops"][0]["tails"]["rest"]
    assert rest["classes"]["load"] == before["classes"]["load"] + 1 + tails.ITEMS


def test_a_pass_over_whole_rows_is_a_fallback():
    sweep = "again:\nLDG.E.128.CONSTANT R40, desc[UR4][R2.64]\nMUFU.EX2 R44, R40\n@P4 BRA again\n"
    text = SCAN.replace("end:\n", f"end:\n@P5 BRA done\n{sweep}done:\n")
    before, rest = (kernel(text)["loops"][-1]["tails"]["rest"] for text in (SCAN, text))
    assert rest["instr"] == before["instr"] + 1 and "special" not in rest["classes"]

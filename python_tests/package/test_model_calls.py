# SPDX-License-Identifier: Apache-2.0
"""tools.gpu_model's simulations against closed forms, its bands, and predictions beside measurements in an invented
file."""

import csv
import importlib
import random
import re
from dataclasses import replace

import pytest
from support.paths import ROOT

pytest.importorskip("typer")
from typer.testing import CliRunner  # noqa: E402

from tools.gpu_model import calls, compare, headers, queues, walks  # noqa: E402
from tools.gpu_model.__main__ import app  # noqa: E402
from tools.gpu_model.calls import Setting  # noqa: E402
from tools.gpu_model.constants import BANDS, CONSTANTS, SOURCES, constants  # noqa: E402
from tools.gpu_model.costs import Costs, Pass, Tail, costs_of  # noqa: E402
from tools.gpu_model.predict import Model, predictions, tails  # noqa: E402
from tools.gpu_model.tails import summary  # noqa: E402
from tools.machine_code.gpus import GPUS  # noqa: E402
from tools.machine_code.instructions import Instruction  # noqa: E402

V, G = 151_936, 5
C = constants("H200")


def us(clocks):
    return clocks / C["clk"] * 1e6


def began(n):
    """Return when each of n blocks of a launch begins, in clocks."""
    draw = random.Random(1)
    return [draw.random() * queues.STAGGER for _ in range(n)]


def simulate(n, steps, slots=1):
    def make(k):
        for step in steps:  # noqa: UP028 (a list is sent no times)
            yield step

    return queues.simulate(C, n, make, slots).us


def test_latencies_of_one_block_add_up():
    steps = [queues.Wait(1000), queues.Load(2048), queues.Work(800, 100), queues.Load(2048, 1.0), queues.Wait(7)]
    load = max(2048 / C["bpc"] + C["dram_lat"], 2048 / C["sm_bw"])
    work = max(800 / 4 / C["issue"], 100 * C["cpi"])
    again = max(C["l2_lat"], 2048 / C["sm_bw"])
    assert simulate(1, steps) == pytest.approx(us(began(1)[0] + 1000 + load + work + again + 7))


def test_many_loads_take_bytes_over_bandwidth():
    n, nbytes = 20_000, 65_536
    floor = n * nbytes / C["bpc"]
    assert us(floor) < simulate(n, [queues.Load(nbytes)], slots=8) < us(floor * 1.01 + C["dram_lat"] + queues.STAGGER)


def test_much_work_takes_instructions_over_issue_slots():
    n, instructions = 132 * 40, 8000
    floor = 40 * instructions / 4 / C["issue"]
    assert us(floor) < simulate(n, [queues.Work(instructions, 1000)], slots=4) < us(1.02 * floor + 10 * C["start"])


def test_blocks_beyond_the_slots_wait_for_one():
    assert simulate(132, [queues.Wait(5000)]) == pytest.approx(us(max(began(132)) + 5000))
    two = simulate(133, [queues.Wait(5000)])
    assert two == pytest.approx(us(min(began(132)) + 2 * 5000 + C["start"]))
    assert simulate(0, [queues.Wait(1)]) == 0


def test_a_launch_begins_beside_the_one_before():
    """What the second launch's blocks do before they wait for the first one takes no time of its own while the first
    runs, except in blocks that find no room."""
    s = lambda ahead: Setting("H200", replace(Costs(), tails={"verify ahead": Tail(1, (ahead,) * 3)}))
    second = lambda ahead, first, B=1: calls._last_launch(
        s(ahead), [0] * B, B, G, V, 2, "verify", queues.Run(first, 0.0)
    )
    nothing = second(0, 50.0)
    assert second(1e4, 50.0) == nothing == pytest.approx(second(0, 1e3))
    assert second(1e4, 0.0) == pytest.approx(nothing - C["early_us"] + C["gap_us"] + us(1e4))
    assert second(1e5, 1e3, 256) > second(0, 1e3, 256) + us(1e5)


def test_numbers_are_those_of_the_headers():
    """Each number is read from its file. A header without it is an error, not a default."""
    text = (ROOT / "csrc/ops/verify_chain/small_batch.cuh").read_text()
    assert calls.FEW_POSITIONS == int(re.search(r"kFewPositions = (\d+);", text)[1])
    assert calls.is_small(1, 5) and not calls.is_small(calls.FEW_POSITIONS, 5)
    assert not calls.is_small(1, calls.MOST_OF_REQUEST)
    assert [calls.chunks_per_warp(1, n) for n in (1 << 12, (1 << 12) + 1, 1 << 20)] == [1, 2, 3]
    assert [calls.pair_chunks_per_warp(1, n) for n in (1 << 11, (1 << 11) + 1, 1 << 20)] == [1, 2, 3]
    with pytest.raises(LookupError, match="launch.h has no `constexpr int kNothing"):
        headers.constant("cuda/launch.h", "kNothing")
    with pytest.raises(LookupError, match=r"launch.h has no `inline int nothing\(...\)`"):
        headers.step("cuda/launch.h", "nothing", 1)
    with pytest.raises(LookupError, match="launch.h: blocks_per_row is no chain of"):
        headers.step("cuda/launch.h", "blocks_per_row", 1)


def test_a_one_hot_draft_has_no_row_to_read():
    """A rejection reads no draft row, and no draft rows are read for stats. It makes no difference whether stats are
    given."""
    s = Setting("H200", Costs())
    for B in (1, 16, 64):
        rows, hot, again = (
            calls.verify_chain(s, B, G, V, **how) for how in ({}, {"one_hot": True}, {"one_hot": True, "stats": False})
        )
        assert hot == again and hot[0] < rows[0]
        rejected = sum(stop < G for stop in calls.stops_of(B, G, 0.7))
        assert rows[1]["floor_MB"] - hot[1]["floor_MB"] == pytest.approx(rejected * V * 2 / 1e6)


@pytest.mark.parametrize("gpu", GPUS)
def test_bands_are_ordered_and_above_the_floor(gpu):
    model = Model(gpu, Costs())
    found = list(predictions(model, [1, 8], G, V, 0.7))
    assert len(found) == 6 + 3
    for line in found:
        kind, middle, hard = line.us
        assert 0 < kind < middle < hard, line
        if m := re.search(r"floor ([\d.]+) us", str(line)):
            assert kind > float(m[1])


def test_constants_have_bands_and_sources():
    for name, constant in CONSTANTS.items():
        kind, middle, hard = constant.band
        assert kind <= middle <= hard or kind >= middle >= hard, name
        assert constant.source == "A" or f"{constant.source} " in SOURCES, name
    memory = lambda gpu, band: constants(gpu, band)["bpc"] * constants(gpu, band)["clk"]
    assert 8e12 > memory("B200", "kind") > memory("H200", "kind") > memory("H200", "hard") > memory("H100", "kind")


def test_memory_bounds_large_batches():
    """The time of many rows is their bytes divided by the bandwidth of streams, if instructions are not the limit."""
    s = Setting("H200", replace(Costs(), scan=200))
    floor = 4096 * V * 2 / (s.memory * s.c["hbm_eff"]) * 1e6
    assert floor < calls.row_stats(s, 4096, V) < 1.05 * floor + 10
    assert calls.verify_chain(s, 8, G, V, alpha=1.0)[1]["floor_MB"] == pytest.approx(8 * (G + 1) * V * 2 / 1e6)
    with_stats, without = (calls.verify_chain(s, 64, G, V, stats=stats)[0] for stats in (True, False))
    assert with_stats < without


def test_fewer_instructions_help_and_tails_cost():
    tail = {name: Tail(10, (1e4, 1e4, 1e4)) for name in calls.TAILS}
    base, heavy = Costs(), replace(Costs(), tails=tail)
    once = lambda costs: calls.row_stats(Setting("H200", costs), 8, V)
    chain = lambda costs: calls.verify_chain(Setting("H200", costs), 64, G, V)[0]
    assert once(base) < once(heavy) and chain(base) < chain(heavy)
    law = Setting("H200", heavy).tail("judge rest").clocks
    assert law == 1e4 + C["judge"]  # the test stays assumed; the row's four floats are counted in row_stats
    more = us(sum(1e4 - Setting("H200", base).tail(f"row_stats {part}").clocks for part in ("begin", "report", "rest")))
    assert once(heavy) - once(base) == pytest.approx(more, rel=0.05)
    assert once(replace(base, scan=200)) < once(base)
    lines = list(tails(Model("H200", heavy)))
    assert len(lines) == 1 + len(calls.TAILS) and list(tails(Model("H200", base))) == []
    taken = {line.split(" (")[0]: float(line.split()[-1]) for line in lines[1:]}
    assert {name for name, clocks in taken.items() if clocks == 1e4} == calls.COUNTED


def test_code_that_runs_once_is_fetched():
    tail = {name: Tail(800, (1e4, 1e4, 1e4), 100) for name in calls.TAILS}
    for band in BANDS:
        s = Setting("H200", replace(Costs(), tails=tail), band)
        fetched = constants("H200", band)["fetch"] * 100
        assert s.tail("finish rest").clocks == 1e4 + fetched and s.tail("finish report").clocks == 1e4
    run = [Instruction(16 * i, "", "FADD", "R1, R2, R3") for i in range(17)]
    assert summary(run)["lines"] == 3
    search = {"name": "kseq_rho::search", "loops": [], "resident": 1, "turns": {"rest": summary(run)}}
    assert costs_of([search]).tails["search rest"].lines == 3


def test_a_walk_is_its_passes():
    s = Setting("H200", replace(Costs(), walk={"scan": Pass(64, 179, 32, 1)}))
    one, two = (walks.walk(s, 1, V, walks.Walk([("scan", walks.L2)] * n, 0, ""), 1) for n in (1, 2))
    trips = -(-V // (32 * 32 * calls.WARPS))
    work = max(179 * C["cpi"], 2 * 179 / C["issue"])
    assert two - one == pytest.approx(us(trips * (C["l2_lat"] + work) + walks.REDUCTION))
    assert walks.walk(s, 1, V, walks.Walk([("scan", walks.L2)], 0, ""), width=8) < one
    assert [walks.blocks_of(s, B) for B in (1, 15, 16, 31, 32, 66, 67)] == [8, 8, 4, 4, 2, 2, 1]


def test_clusters_that_do_not_fit_at_once_take_turns():
    s = Setting("H200", Costs())
    once, twice = (walks.walk(s, B, V, walks.KSEQ, 8) - C["first_us"] for B in (15, 16))
    assert twice == pytest.approx(2 * once)
    assert walks.fits(Setting("B200", Costs()), 8) == GPUS["B200"].sms // 8  # its groups of SMs are not known


def test_what_is_kept_needs_room():
    """149 chunks of a pair fit in 8 blocks. They do not fit in 4, where each pass reads both rows again."""
    s = Setting("H200", Costs())
    took = lambda source, width: walks.walk(s, 1, V, walks.Walk([("unders", source)], 0, ""), width)
    assert took(walks.KEPT, 4) == took(walks.L2, 4) and took(walks.KEPT, 8) < took(walks.L2, 8)


def test_counted_turns_stand_for_what_was_assumed():
    """A walk of three passes takes the part before the loop, two turns, and the rest. The counts already include the
    fence of a cluster's barrier, so only the barrier's other clocks are added."""
    tails = {f"search {part}": Tail(1, (n, n, n)) for part, n in (("begin", 1e4), ("turn", 2e4), ("rest", 3e4))}
    counted, assumed = (Setting("H200", replace(Costs(), tails=found)) for found in (tails, {}))
    search = walks.Walk([("search", walks.L2)] * 3, 1e5, "search")
    took = [walks.walk(s, 1, V, search, 8) for s in (counted, assumed)]
    more = 1e4 + 2 * 2e4 + 3e4 - 1e5 - 3 * (walks.REDUCTION + C["fence"])
    assert took[0] - took[1] == pytest.approx(us(more))


def test_what_is_kept_is_not_read_again():
    s = Setting("H200", Costs())
    kept, read = (walks.walk(s, 1, V, walks.Walk([("unders", x)], 0, ""), 8) for x in (walks.KEPT, walks.L2))
    alone = (walks.walk(s, 1, V, walks.Walk([("unders", x)], 0, ""), 1) for x in (walks.KEPT, walks.L2))
    assert kept < read and len(set(alone)) == 1


def loop(**more):
    counts = {"MUFU": 32, "instr": 256} | more.pop("counts", {})
    return (
        {"kind": "loop", "at": "0", "rows": 1, "bytes": 64, "per16": 64.0, "instr": 256, "batches": 1}
        | more
        | {"counts": counts}
    )


def test_costs_are_taken_from_the_cheapest_fitting_loop():
    kernel = lambda name, *loops: {"name": name, "resident": 3, "loops": list(loops)}
    ticket = {part: {"instr": 9, "clocks": [1, 2, 3]} for part in ("begin", "report", "rest")}
    costs = costs_of(
        [
            kernel("verify_chain::judge_rows<false>", loop(per16=70.0, tails=ticket), loop(per16=80.0)),
            kernel("verify_chain::judge_rows<true>", loop(per16=61.0)),
            kernel("requests::verify_requests", loop(per16=62.0)),
            kernel("verify_chain::finish_requests", loop(rows=2, per16=160.0, batches=2)),
        ]
    )
    assert (costs.scan, costs.scan_slots, costs.scan_waits) == (70 * 4 + 20, 3, 1)
    assert (costs.pair, costs.pair_slots, costs.pair_waits) == (160 * 8 + 40, 3, 4)
    assert costs.tails["judge report"] == Tail(9, (1, 2, 3)) and "finish report" not in costs.tails
    assert costs_of([]) == Costs()


ABOUT = {"commit": "0123456789ab", "GPU": "NVIDIA H200, sm_90, 132 SMs, L2 50 MiB, 143771 MiB"}


def results(path, about=ABOUT, rows=()):
    """Write a bench.csv in the format of bench/report.py, with invented times. Return its path."""
    header = importlib.import_module("bench.report").CSV_HEADER
    with path.open("w", newline="") as f:
        f.writelines(f"# {key}: {value}\n" for key, value in about.items())
        table = csv.DictWriter(f, header)
        table.writeheader()
        for op, case, seconds, timed in rows:
            table.writerow({"op": op, "case": case, "device": "cuda", "timed": timed, "seconds": seconds})
    return path


ROWS = [
    ("verify_chain", "B=64 V=151936 bf16 stats T=.7", 60e-6, "graph"),
    ("row_stats", "N=384 V=151936 bf16", 20e-6, "graph"),
    ("sample", "N=64 V=151936 bf16 k=1", 5e-3, "graph"),
    ("sample", "N=1 V=32000 bf16 k=1", 1e-5, "call"),
    ("verify_chain", "B=64 V=151936 bf16 stats T=.7 top_k=50 top_p=.9", 1e-4, "graph"),
]


def test_predicted_beside_measured(tmp_path):
    read = compare.read(results(tmp_path / "bench.csv", rows=ROWS))
    assert read.gpu == "H200" and len(read.rows) == len(ROWS)
    found = list(compare.lines(Model(read.gpu, Costs()), read.rows))
    assert [line.verdict for line in found] == ["in the band", "FASTER", "SLOWER"]
    assert found[0].measured == pytest.approx(60) and f"{60 / found[0].us[1]:.2f}" in str(found[0])
    chain = Model("H200", Costs()).band(lambda s: calls.verify_chain(s, 64, G, V)[0])
    assert found[0].us[1] == pytest.approx(chain[1] + C["gap_us"] - C["first_us"])
    text = "\n".join(compare.report(compare.read(tmp_path), lambda gpu: Model(gpu, Costs())))
    assert "commit 0123456789ab" in text and "1 of 3 in the band; 2 cases are not in the model" in text


@pytest.mark.parametrize("gpu", ["REHEARSAL, no GPU, sm_00", "NVIDIA GeForce RTX 5090, sm_120", None])
def test_nothing_is_called_measured_that_was_not(tmp_path, gpu):
    about = {"commit": "x"} | ({"GPU": gpu} if gpu else {})
    read = compare.read(results(tmp_path / "bench.csv", about, ROWS))
    [line] = compare.report(read, lambda gpu: pytest.fail("no model is made"))
    assert line.startswith("Nothing was measured on a GPU that the model has") and (gpu or "no GPU") in line


def test_the_model_knows_the_benchmarks_labels():
    known = {
        op: [c.label for c in importlib.import_module(f"bench.{op}").cases("cuda") if compare.known(op, c.label)]
        for op in ("verify_chain", "row_stats", "sample", "kseq_rho", "verify_tree")
    }
    assert len(known["verify_chain"]) == 24 and "B=64 V=151936 bf16 T=.7" in known["verify_chain"]
    assert {op: len(labels) for op, labels in known.items() if op != "verify_chain"} == {
        "row_stats": 4,
        "sample": 4,
        "kseq_rho": 2,
        "verify_tree": 0,
    }
    chain = importlib.import_module("bench.verify_chain")
    assert chain.G == compare.G


def run(*arguments):
    done = CliRunner().invoke(app, [str(x) for x in arguments])
    return done.exit_code, done.output


def test_commands(tmp_path, monkeypatch):
    status, text = run("predict", "--sources")
    assert status == 0 and all(name in text for name in CONSTANTS) and "S9" in text
    with monkeypatch.context() as patched:
        patched.setattr("tools.gpu_model.__main__._read", lambda *args, **chosen: [])
        status, text = run("predict", "--B", "1")
    assert status == 0 and "verify_chain exact" in text
    assert len(text.splitlines()) == 1 + 3 + 2
    status, text = run("compare", results(tmp_path / "bench.csv", rows=ROWS), "--library", tmp_path / "none.so")
    assert status == 0 and "No machine code could be read" in text and "1 of 3 in the band" in text
    assert run("sass", tmp_path / "none.so")[0] == 2 and run("predict", "--gpu", "A100")[0] == 2


def test_a_library_of_another_architecture_is_refused(tmp_path, monkeypatch):
    """sass and predict refuse a library without kernels of the GPU's architecture. compare uses the constants that
    stand in for a library, and says so."""
    library = tmp_path / "of_12.0.so"
    library.touch()
    monkeypatch.setattr("tools.gpu_model.__main__.cuobjdump", lambda: "cuobjdump")
    monkeypatch.setattr("tools.gpu_model.__main__.analyse", lambda *args, **kwargs: [])
    for command in (("sass", library), ("predict", "--library", library)):
        status, text = run(*command)
        assert status == 2 and "of_12.0.so must hold a kernel of sm_90, got none" in " ".join(text.split())
    status, text = run("compare", results(tmp_path / "bench.csv", rows=ROWS), "--library", library)
    assert status == 0 and "No machine code could be read" in text

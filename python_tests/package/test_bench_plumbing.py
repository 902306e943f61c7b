# SPDX-License-Identifier: Apache-2.0
"""The benchmarks without their measurements: code that would otherwise first run on a GPU that is paid by the
minute."""

import csv
import importlib
import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import registry
from specdec_kernels.arguments import taken

ROOT = Path(__file__).parents[2]
pytest.importorskip("bench.run", reason="needs the source tree's bench")

import typer  # noqa: E402

from bench import clock, harness, rehearsal, run, verify_chain  # noqa: E402
from bench.engines import vllm_pair, vllm_step  # noqa: E402
from bench.peers import eager, sglang, switched, triton  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread for thousands of small calls: on a busy machine threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def step(**options):
    return verify_chain.Step(**{"B": 3, "V": 100, "dtype": "fp32"} | options)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, (10 + 2, 2)),  # target rows up to the stop; one draft row per rejection; the target row at the stop again
        ({"stats": False}, (10 + 9, 4)),  # draft rows up to the stop too; both rows at the stop again
        ({"top_k": 50}, (10 + 2, 2 + 10)),  # and each target row again to find the cutoff
        ({"temperature": 0.0}, (10, 0)),
        ({"one_hot": True}, (10, 2)),  # a one-hot draft has no row
    ],
)
def test_rows_that_a_step_reads(options, rows):
    assert verify_chain.rows_read(step(**options), torch.tensor([0, 5, 2])) == rows


def test_labels_name_their_step():
    labels = [s.label for device in ("cpu", "cuda") for s in verify_chain.steps(device)]
    assert {f"B={B} V=151936 bf16 {how} T=.7" for B in (1, 8, 16, 64) for how in ("stats", "one-hot")} <= set(labels)
    assert "B=32 V=151936 bf16 stats T=.7" in labels and "B=64 V=151936 bf16 stats T=.7 top_k=50 top_p=.9" in labels
    for device in ("cpu", "cuda"):
        labels = [case.label for case in verify_chain.cases(device)]
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 20}, {"top_p": 0.8}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.05}], ids=str
)
def test_eager_law_is_ours(filters):
    z = harness.logits(4, 500, dtype=torch.float32, device="cpu", seed=3)
    scale, cutoff, log_norm, top = sk.row_stats(sk.Rows(z, temperature=0.7, **filters)).unsqueeze(-1).unbind(1)
    want = torch.where(z >= cutoff, (z - top) * scale - log_norm, -torch.inf)
    torch.testing.assert_close(eager.log_law(z, torch.tensor(0.7), **filters), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("draft_is", ["rows", "rows with stats", "one-hot"])
def test_eager_step_emits_the_targets_law(draft_is):
    """With 50,000 requests, a shift of .01 in a token's probability is about 4.5 standard errors or more."""
    B, G, V = 50_000, 2, 8
    torch.manual_seed(7)
    target, draft = torch.randn(1, G + 1, V).expand(B, -1, -1), torch.randn(1, G, V).expand(B, -1, -1)
    rows = {"seed": torch.arange(B * G), "offset": torch.zeros(B * G, dtype=torch.int64)}
    drawn = sk.sample(draft.reshape(B * G, V), **rows)
    tokens = drawn.tokens.view(B, G) if draft_is != "one-hot" else target[:, :G].argmax(-1)
    draft_stats = drawn.rows.stats.view(B, G, 4) if draft_is == "rows with stats" else None
    draft = None if draft_is == "one-hot" else draft
    out = eager.step(target, tokens, draft, draft_stats)
    p = target[0, 0].softmax(-1)
    error = (out[:, 0].bincount(minlength=V) / B - p) / (p * (1 - p) / B).sqrt()
    assert error.abs().max() < 4.5
    checked = sk.verify_chain(target, tokens, draft, seed=torch.arange(B), offset=torch.ones(B, dtype=torch.int64))
    ours = verify_chain.tokens_per_request(checked)
    assert 1.2 < ours < 2.8 and abs(verify_chain.tokens_per_request(out) - ours) < 0.02


def test_drafts_are_accepted_as_often_as_the_bench_says():
    for temperature in (0.7, 1.0):
        x = verify_chain.inputs(step(B=96, V=32000, dtype="bf16", temperature=temperature), "cpu")
        n = verify_chain.ours(x).num_accepted
        assert 0.62 < (n.sum() / (n + 1).clamp(max=verify_chain.G).sum()).item() < 0.82
    x = verify_chain.inputs(step(B=16, V=1000, dtype="bf16", temperature=0.7, closeness=0.0), "cpu")
    assert (verify_chain.ours(x).num_accepted == verify_chain.G).all()


def work(**options):
    x = SimpleNamespace(x=torch.ones(1 << 16))
    return harness.Work(x, lambda x: x.x.sum(), bytes=x.x.nbytes, **options)


def test_a_broken_peer_costs_its_own_column():
    def broken(x):
        raise RuntimeError("no such kernel")

    def absent():
        raise harness.Unavailable("not installed")

    made = work(peers={"eager": lambda x: x.x.sum(), "broken": broken})
    made.peer("absent", absent)
    result = harness.measure(harness.Case("case", lambda: made), "cpu", rounds=2)
    assert set(result.ratios) == {"eager"}
    assert result.skipped == {"absent": "not installed", "broken": "RuntimeError: no such kernel"}


def test_inputs_rotate_through_more_than_the_cache():
    with rehearsal.no_gpu():
        sets = harness.copies(work(), "cuda")
        assert len(sets) * sets[0].x.nbytes >= 3 * rehearsal.PROPERTIES.L2_cache_size
        assert len({s.x.data_ptr() for s in sets}) == len(sets)
        seen = set()
        for way in (clock.stream, clock.graph):
            once = way(lambda x: seen.add(x.x.data_ptr()) or x.x.sum(), sets, 1)
            assert len(seen) == len(sets) and once() > 0
            seen.clear()


def test_the_triton_peer_gets_the_ops_own_arguments(monkeypatch):
    x = verify_chain.inputs(step(), "cpu")
    seen = []

    ops = pytest.importorskip("specdec_kernels.triton")

    def write(results, *arguments):
        seen.append(arguments)
        for result, x in zip(results, torch.ops.specdec.verify_chain(*arguments)):
            result.copy_(x)

    names = ("results", *(x.name for x in taken("verify_chain")))
    write.__signature__ = inspect.Signature([inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in names])
    monkeypatch.setattr(ops.importlib, "import_module", lambda name: SimpleNamespace(verify_chain=write))
    monkeypatch.setattr(sk.backends, "lacks", lambda name: None)
    monkeypatch.setattr(sk.backends, "chosen", lambda: "cuda")
    call = triton.same("verify_chain", verify_chain.ours, "cuda")
    for _ in range(2):
        assert torch.equal(call(x)[0], verify_chain.ours(x).tokens)
    assert len(seen) == 2 and seen[0][0] is x.target


@pytest.mark.parametrize("switch", [(switched.PATH, "streaming"), (switched.OVERLAP, "0")], ids=lambda x: x[0])
def test_a_switched_peer_is_ours_by_another_way(monkeypatch, switch):
    name, value = switch
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sk.backends, "chosen", lambda: "cpu")
    with pytest.raises(harness.Unavailable, match="ours is no CUDA here"):
        switched.same(lambda x: x, *switch)
    monkeypatch.setattr(sk.backends, "chosen", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    with pytest.raises(harness.Unavailable, match="this GPU has no clusters, and its launches do not overlap"):
        switched.same(lambda x: x, *switch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert switched.same(lambda x: (x, os.environ[name]), *switch)(1) == (1, value)
    with pytest.raises(ZeroDivisionError):
        switched.same(lambda x: 1 / x, *switch)(0)
    assert name not in os.environ
    monkeypatch.setenv(name, "else")
    with switched.switch(*switch):
        assert os.environ[name] == value
    assert os.environ[name] == "else"
    with pytest.raises(harness.Unavailable, match=f"{name} is set for all"):
        switched.same(lambda x: x, *switch)


def test_a_timed_function_notes_each_call():
    holder = SimpleNamespace(divide=lambda x: 1 / x)
    taken = vllm_step.timed(holder, "divide")
    assert holder.divide(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        holder.divide(0)
    assert len(taken) == 2 and min(taken) > 0


def test_sides_of_a_pair_take_turns(capsys):
    """Each ratio is that of one round, and the table shows the median of the ratios, not the ratio of the medians."""
    turns = []

    def side(name, seconds, texts):
        def round(temperature, seed):
            turns.append((name, temperature, seed))
            took = seconds[(len(turns) - 1) // 3 % 3]
            found = {"tokens": 12, "seconds": took, "cpu": took / 2, "texts": texts, "drafted": 0, "accepted": 0}
            return found | ({} if name == "no speculation" else {"drafted": 8, "accepted": 2})

        return SimpleNamespace(round=round)

    both = {"vLLM": ([2, 4, 3], [[1], [2]]), "plugin": ([2, 2, 1], [[1], [3]])}
    sides = {name: side(name, *given) for name, given in ({"no speculation": ([4, 6, 2], [[1], [2]])} | both).items()}
    vllm_pair.compare(SimpleNamespace(temperature=[0.0, 1.0], rounds=3, prompts=2), sides)
    assert [x[0] for x in turns] == [*vllm_pair.SIDES] * 7
    assert [x[1:] for x in turns[3::3]] == [(t, seed) for t in (0.0, 1.0) for seed in (1, 3, 5)]
    lines = capsys.readouterr().out.splitlines()
    assert len({line.count("|") for line in lines[:8]}) == 1
    assert "| 0 | no speculation |  | 3.0 | 1.00 (1.00-1.00) | 6.0 | 1.00 (1.00-1.00) |" in lines
    assert any(line.startswith("| 0 | plugin | 0.250 | 6.0 | 2.00 (2.00-3.00) | 12.0 |") for line in lines)
    assert lines[-1] == "the plugin's texts at T=0 that are those without speculation: 3 of 6"


BLOCKWISE = """
import msgspec
import torch


class Noise(msgspec.Struct, frozen=True):
    key: int


def blockwise_rejection_triton(
    *, candidates, target_logits, draft_logits, target_temperatures, draft_temperatures, noise, cutoff_verify_lens=None
):
    B, S = candidates.shape
    assert target_logits.shape[:1] == (B * S,) and draft_logits.shape[:2] == (B, S - 1) and noise.key
    assert target_temperatures.tolist() == draft_temperatures.tolist() == [torch.tensor(0.7).item()] * B
    noise.counter.add_(1)
    return torch.full((B,), S - 1, dtype=torch.int32), candidates[:, 1], noise.counter
"""


def test_a_peer_from_a_folder(tmp_path, monkeypatch):
    """The kernel's file is loaded from the folder, without the package's own import, which would fail here."""
    folder = tmp_path / "sglang" / "kernels" / "ops" / "speculative" / "dspark"
    folder.mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").write_text("raise ImportError('too much')")
    (folder / "blockwise_rejection.py").write_text(BLOCKWISE)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    sglang.rejection.cache_clear()
    with pytest.raises(harness.Unavailable, match="not installed, and SPECDEC_BENCH_SGLANG names no folder"):
        sglang.chain(3, 0.7, "cuda")
    monkeypatch.setenv("SPECDEC_BENCH_SGLANG", str(tmp_path))
    with rehearsal.no_gpu():
        work = verify_chain._step(step(temperature=0.7), "cuda")
        assert "sglang" in work.peers
        accepted = work.peers["sglang"](work.inputs)
    assert verify_chain.tokens_per_request(accepted) == verify_chain.G + 1
    (folder / "blockwise_rejection.py").write_text(BLOCKWISE.replace("noise, cutoff", "random, cutoff"))
    del sys.modules[sglang.MODULE]
    sglang.rejection.cache_clear()
    with rehearsal.no_gpu(), pytest.raises(harness.Unavailable, match="takes no noise in this version"):
        sglang.chain(3, 0.7, "cuda")
    sglang.rejection.cache_clear()


@pytest.mark.slow
def test_a_gpu_run_from_end_to_end(tmp_path, monkeypatch, capsys):
    """The GPU path runs on the CPU, with small steps in place of the real ones."""
    small = [step(temperature=0.7), step(temperature=0.0), step(top_k=5, top_p=0.9), step(stats=False)]
    monkeypatch.setattr(verify_chain, "steps", lambda device: small)
    table, markdown = tmp_path / "bench.csv", tmp_path / "bench.md"
    with rehearsal.no_gpu():
        run.main(["verify_chain", "accept"], "cuda", "", "all", str(table), str(markdown), rounds=2, budget=1e9)
    rows = list(csv.DictReader(line for line in table.open() if not line.startswith("#")))
    assert [row["case"] for row in rows][: len(small)] == [s.label for s in small]
    assert all(row["timed"] == "graph" and float(row["GB/s"]) > 0 for row in rows if int(row["bytes"]))
    assert all(peer in rows[0]["skipped"] for peer in ("flashinfer", "vllm", "sglang"))
    assert "# commit: " in table.read_text() and rows[0]["case"] in markdown.read_text()


def test_cases_that_compile_come_last_and_a_run_goes_on(tmp_path, monkeypatch, capsys):
    """A run that is out of time returns a nonzero status. Called again on the same commit, it measures only the missing
    cases."""
    small = [harness.Case("compiled", work, last=True), *(harness.Case(label, work) for label in ("one", "two"))]
    monkeypatch.setattr(verify_chain, "cases", lambda device: small)
    monkeypatch.setattr(run, "copy_bandwidth", lambda device: 1.0)
    monkeypatch.setattr(run.machine, "describe", lambda device: {"commit": run.machine.commit(), "GPU": "none"})
    monkeypatch.setenv("SPECDEC_COMMIT", "0123456789ab")
    table = tmp_path / "bench.csv"

    def cases(budget):
        status = 0
        with rehearsal.no_gpu():
            try:
                run.main(["verify_chain"], "cuda", "", "none", str(table), "", 1, budget, resume=True)
            except typer.Exit as exit:
                status = exit.exit_code
        rows = csv.DictReader(line for line in table.open() if not line.startswith("#"))
        return status, [row["case"] for row in rows], capsys.readouterr().out.splitlines()[-1]

    every = ["one", "two", "compiled"]
    assert cases(0.0) == (1, [], "cases: 0 kept, 0 measured, 3 out of time, 0 failed")
    assert cases(1e9) == (0, every, "cases: 0 kept, 3 measured, 0 out of time, 0 failed")
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[:-1]))  # as if the run had ended there
    assert cases(0.0) == (run.UNFINISHED, every[:2], "cases: 2 kept, 0 measured, 1 out of time, 0 failed")
    assert cases(1e9) == (0, every, "cases: 2 kept, 1 measured, 0 out of time, 0 failed")
    monkeypatch.setenv("SPECDEC_COMMIT", "0123456789ab+")  # the tree has changes, so its results belong to no commit
    assert cases(1e9)[2] == "cases: 0 kept, 3 measured, 0 out of time, 0 failed"


def test_a_case_that_breaks_fails_the_run_but_not_the_next(monkeypatch, capsys):
    monkeypatch.setattr(verify_chain, "steps", lambda device: [step()])
    monkeypatch.setattr(verify_chain, "ours", lambda x: 1 / 0)
    with pytest.raises(typer.Exit) as exit:
        run.main(["verify_chain"], "cpu", "", "none", "", "", rounds=1, budget=1e9)
    printed = capsys.readouterr().out
    assert exit.value.exit_code == 1 and "FAILED verify_chain B=3" in printed and "B=1 V=64 wrapper" in printed


def test_every_op_has_its_benchmark():
    assert run.OPS[0] == "verify_chain" and set(run.OPS) == {*registry.OPS, "rules"}
    for op in run.OPS:
        labels = [case.label for case in importlib.import_module(f"bench.{op}").cases("cpu")]
        assert labels and len(set(labels)) == len(labels), op

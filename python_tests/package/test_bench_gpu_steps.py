# SPDX-License-Identifier: Apache-2.0
"""The kernel steps of bench/gpu_check.sh, rehearsed without a GPU. Their numbers mean nothing."""

import csv

import pytest
import torch
from support.paths import ROOT

pytest.importorskip("bench.run", reason="needs the source tree's bench")

from bench import cold, counters, harness, kernel_times, main_cases, rehearsal, stress, verify_chain  # noqa: E402
from specdec_kernels import registry  # noqa: E402

KERNELS = {  # the profiler's name: our name
    "void specdec::(anonymous namespace)::judge_rows<false>(specdec::(anonymous namespace)::Step)": "judge_rows<false>",
    "specdec::(anonymous namespace)::finish_requests(specdec::(anonymous namespace)::Step)": "finish_requests",
    "Memset (Device)": "Memset (Device)",
    "_stats_kernel": "_stats_kernel",
}


@pytest.fixture(autouse=True)
def without_a_gpu():
    with rehearsal.no_gpu():
        yield


@pytest.fixture
def small(monkeypatch):
    step = verify_chain.Step(3, 100, "fp32", temperature=0.7)
    work = lambda: verify_chain._step(step, "cuda")
    for module in (kernel_times, counters):
        monkeypatch.setattr(module, "LABELS", [("verify_chain", "small"), ("verify_chain", "small again")])
        monkeypatch.setattr(module, "case", lambda op, label: harness.Case(label, work))


def test_the_main_cases_are_among_the_benchmarks():
    assert [main_cases.case(*each).label for each in main_cases.LABELS] == [label for _, label in main_cases.LABELS]


@pytest.mark.parametrize("name", KERNELS)
def test_names_of_kernels(name):
    assert kernel_times.short(name) == KERNELS[name]


def test_kernel_times(small, tmp_path, capsys):
    file = tmp_path / "kernels.csv"
    kernel_times.main(csv_file=str(file), seconds=60)
    rows = list(csv.DictReader(file.open()))
    assert {row["case"] for row in rows} == {"small", "small again"}
    ours = [row for row in rows if row["kernel"] == "specdec::verify_chain"]
    assert len(ours) == 2 and all(float(row["launches"]) == 1 and float(row["us"]) > 0 for row in ours)
    assert capsys.readouterr().out.splitlines()[-1] == f"{len(rows) - 2} kernels of 2 of 2 cases"
    calls = [float(row["us"]) for row in rows if row["kernel"] == kernel_times.CALL]
    assert len(calls) == 2 and all(call >= float(row["us"]) for call, row in zip(calls, ours))


def test_launches_that_overlap_count_once():
    """In each call the second launch begins 3 us before the first ends, and a memset comes first."""
    Event = kernel_times.Event
    call = lambda t: [Event("memset", t, t + 1), Event("first", t + 2, t + 10), Event("second", t + 7, t + 15)]
    events = [event for i in range(kernel_times.CALLS) for event in call(100 * i)]
    assert kernel_times.times(events) == [
        ("first", 1, 8),
        ("second", 1, 8),
        ("memset", 1, 1),
        (kernel_times.CALL, 1, 15),
    ]
    assert [name for name, *_ in kernel_times.times(events[1:])] == ["first", "second", "memset"]


@pytest.mark.parametrize(
    "script, said",
    [
        (None, "no counters: ncu is not on the PATH"),
        ('echo ==PROF== busy; echo \'"Kernel Name","dram__bytes_read.sum"\'', "counters of 2 of 2 cases"),
        ("echo ERR_NVGPUCTRPERM; exit 3", "no counters: ncu ended with 3: ERR_NVGPUCTRPERM"),
        ("echo ==ERROR== no profiler; echo bye", "no counters: ncu read none: ==ERROR== no profiler"),
        ("sleep 30", "counters of 0 of 2 cases"),
    ],
)
def test_counters(small, tmp_path, monkeypatch, script, said):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":" if script else None)
    if script:
        (tmp_path / "ncu").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setattr(counters, "LEAST", 0.1)
    monkeypatch.setattr(rehearsal, "active", lambda: False)
    assert counters.counted(str(tmp_path / "counters.csv"), limit=60 if "sleep" not in str(script) else 0.5) == said
    if "2 of 2" in said:
        lines = (tmp_path / "counters.csv").read_text().splitlines()
        assert lines == ["# verify_chain small", '"Kernel Name","dram__bytes_read.sum"'] + [
            "# verify_chain small again",
            '"Kernel Name","dram__bytes_read.sum"',
        ]


def test_stress(capsys):
    with pytest.raises(SystemExit) as exit:
        stress.main(batch=2, vocabulary=300, replays=3, seconds=60)
    assert exit.value.code == 0
    assert "4 streams, 3 replays each" in (told := capsys.readouterr().out) and "every answer the first one" in told


def test_stress_sees_another_answer(monkeypatch, capsys):
    x = torch.zeros(2)
    monkeypatch.setattr(stress, "calls", lambda B, V: {"drifts": lambda: (x.add_(1).clone(),)})
    with pytest.raises(SystemExit) as exit:
        stress.main(batch=2, vocabulary=300, replays=3, seconds=60)
    assert exit.value.code == 1 and "drifts: " in capsys.readouterr().out


@pytest.mark.parametrize("op", registry.OPS)
def test_every_op_is_captured_by_its_first_call(op):
    assert cold.captured(op)


@pytest.mark.thorough
@pytest.mark.slow
def test_cold_starts_a_process_for_each_op(monkeypatch, capsys):
    monkeypatch.setattr(registry, "OPS", ["uniforms", "no_such_op"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as exit:
        cold.main("")
    lines = capsys.readouterr().out.splitlines()
    assert exit.value.code == 1 and lines[-1] == "1 of 2 ops can be captured cold" and "no_such_op: " in lines[0]

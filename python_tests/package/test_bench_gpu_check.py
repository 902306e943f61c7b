# SPDX-License-Identifier: Apache-2.0
"""A rehearsal of bench/gpu_check.sh, typed as in docs/gpus.md, and its behaviour if steps fail."""

import os
import re
import subprocess
import sys

import pytest
import torch
from support import backends, on_backends
from support.paths import ROOT
from support.specialisations import HARNESS

pytest.importorskip("bench.run", reason="needs the source tree's bench")

from bench import sanitize  # noqa: E402
from specdec_kernels import example_calls, registry  # noqa: E402

SCRIPT = ROOT / "bench/gpu_check.sh"
COMMIT = "0123456789ab"
FAKE = """#!/usr/bin/env bash
case "$*" in *"{fails}"*) echo "it went wrong"; exit 1 ;; *) echo "ok: ${{*: -1}}" ;; esac
"""


def gpu_check(outdir, *steps, **environment):
    given = {"DEVICE": "cpu", "PYTHON": sys.executable, "WORKERS": "1", "SPECDEC_COMMIT": COMMIT}
    environment = os.environ | given | {"OMP_NUM_THREADS": "1"} | environment
    command = ["bash", str(SCRIPT), str(outdir), *steps]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=7200)


def summary(outdir):
    """Return [(step, its result)] of the summary, without the first line."""
    lines = (outdir / "summary.txt").read_text().splitlines()
    assert lines[0] == f"commit {COMMIT} on no GPU"
    return [re.fullmatch(r"(\S+) +\d+s  (.*)", line).groups() for line in lines[1:]]


def fake(tmp_path, fails):
    """Return a fake interpreter that does nothing, and fails if its arguments contain a word."""
    path = tmp_path / "python"
    path.write_text(FAKE.format(fails=fails))
    path.chmod(0o755)
    return str(path)


def listed():
    """Return the steps of each call, from the list at the script's beginning."""
    text = SCRIPT.read_text()
    return {
        number: steps.split() for number, steps in re.findall(r"^#   (\d)  ([a-z -]+?)  +[\d:]+ minutes$", text, re.M)
    }


def test_each_call_runs_its_steps_once(tmp_path):
    for number, steps in listed().items():
        out = tmp_path / number
        done = gpu_check(out, number, PYTHON=fake(tmp_path, "nothing"), TESTS="python_tests/ops/test_x.py")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [step for step, _ in summary(out)] == [*steps, "total"]
        again = gpu_check(out, number, PYTHON=fake(tmp_path, "nothing"), TESTS="python_tests/ops/test_x.py")
        skipped = ["tests-triton"] * (number == "3")  # never passed in a rehearsal
        assert [step for step, _ in summary(out)[len(steps) + 1 :]] == ["environment", "build", *skipped, "total"]
        assert again.returncode == 0 and len(list(out.iterdir())) <= 8
    assert list(listed()) == list("1234")


def test_all_four_calls_are_a_default(tmp_path):
    done = gpu_check(tmp_path / "out", PYTHON=fake(tmp_path, "nothing"), TESTS="python_tests/ops/test_x.py")
    every = dict.fromkeys(step for steps in listed().values() for step in steps)
    assert done.returncode == 0 and [step for step, _ in summary(tmp_path / "out")] == [*every, "total"]


def test_wrong_answers_are_not_timed(tmp_path):
    out = tmp_path / "out"
    done = gpu_check(out, "1", "2", PYTHON=fake(tmp_path, "bench.smoke"))
    said = dict(summary(out))
    assert done.returncode == 1 and said["smoke"] == "FAILED, exit status 1: it went wrong"
    stopped = {step for step, told in said.items() if told == "not run: smoke failed"}
    assert stopped == {"kernels", "stress", "bench", "counters", "loop"} and said["cold"].startswith("passed")


def test_nothing_runs_where_nothing_was_built(tmp_path):
    out = tmp_path / "out"
    done = gpu_check(out, "4", PYTHON=fake(tmp_path, "- cpu"))
    said = dict(summary(out))
    assert done.returncode == 1 and said.pop("build").startswith("FAILED") and said.pop("environment")
    assert said.pop("total") == "FAILED" and set(said.values()) == {"not run: build failed"}
    assert "ok: --inplace" in (out / "log.txt").read_text()  # setup.py was called


def test_libraries_that_load_are_not_built_again(tmp_path):
    done = gpu_check(tmp_path / "out", "build", PYTHON=fake(tmp_path, "setup.py"))
    assert done.returncode == 0 and dict(summary(tmp_path / "out"))["build"] == "passed: ok: cpu"


def test_a_factor_that_is_no_whole_number_is_refused_at_once(tmp_path):
    for given in ("1.5", "0", "x"):
        done = gpu_check(tmp_path / "out", "environment", PYTHON=fake(tmp_path, "nothing"), SLOWER=given)
        assert done.returncode == 2 and not (tmp_path / "out").exists()
        assert done.stderr == f"gpu_check: SLOWER must be a whole number from 1 on, got {given}\n"


def test_another_commit_needs_another_folder(tmp_path):
    out, python = tmp_path / "out", fake(tmp_path, "nothing")
    assert gpu_check(out, "environment", PYTHON=python).returncode == 0
    done = gpu_check(out, "environment", PYTHON=python, SPECDEC_COMMIT="beef")
    assert done.returncode == 2
    assert f"{out} is of commit {COMMIT} on no GPU, this is commit beef on no GPU: name another" in done.stderr


def test_a_changed_tree_passes_nothing_for_later(tmp_path):
    for _ in range(2):
        gpu_check(tmp_path / "out", "cold", PYTHON=fake(tmp_path, "nothing"), SPECDEC_COMMIT=COMMIT + "+")
    assert (tmp_path / "out/summary.txt").read_text().count("\ncold ") == 2


def test_tools_that_cannot_reach_the_gpu_are_no_failure(tmp_path):
    """A hypervisor may hide the device from tools."""
    tools = {"compute-sanitizer": "echo Device not supported; exit 1", "nvidia-smi": "echo no GPU"}
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    given = {"DEVICE": "cuda", "PYTHON": fake(tmp_path, "nothing"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = gpu_check(tmp_path / "out", "memcheck", "racecheck", **given)
    assert done.returncode == 0, done.stdout + done.stderr
    told = "not run: compute-sanitizer cannot reach the GPU: Device not supported"
    assert summary(tmp_path / "out")[:2] == [("memcheck", told), ("racecheck", told)]


TESTS = """
import time


def test_wrong_cpu():
    assert 1 + 1 == 3, "this is to be read"


def test_long_cpu():
    time.sleep(600)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_tests_out_of_time_say_what_failed(tmp_path):
    """A step that exceeds its limit, here 60 seconds, reports the tests that failed until then."""
    (tmp_path / "python_tests/ops").mkdir(parents=True)
    (tmp_path / "python_tests/ops/test_x.py").write_text(TESTS)
    script = SCRIPT.read_text().replace("[tests-ops]=165", "[tests-ops]=60")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/gpu_check.sh").write_text(script)
    environment = os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable, "WORKERS": "2"}
    environment |= {"TESTS": "python_tests/ops/test_x.py", "SPECDEC_COMMIT": COMMIT}
    command = ["bash", str(tmp_path / "bench/gpu_check.sh"), str(tmp_path / "out"), "tests-ops"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "FAILED, out of its 60 s" in done.stdout, done.stdout
    log = (tmp_path / "out/log.txt").read_text()
    assert "AssertionError: this is to be read" in log and "FAILED python_tests/ops/test_x.py::test_wrong_cpu" in log


def typed():
    """Return the rehearsal's command in docs/gpus.md: variables before the script."""
    line = re.search(r"^(.*)bench/gpu_check\.sh \S+ 1 +# and 2, 3, 4$", (ROOT / "docs/gpus.md").read_text(), re.M)
    return dict(each.split("=", 1) for each in line[1].split())


def test_the_page_has_every_call():
    calls = re.findall(r"^SPECDEC_COMMIT=.+ bench/gpu_check\.sh \S+ (\d)\b", (ROOT / "docs/gpus.md").read_text(), re.M)
    assert calls == list(listed()) and typed()["DEVICE"] == "cpu"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("number", list("1234"))
def test_rehearsal(number, tmp_path):
    """Each step of a call passes without a GPU, or says that it is not rehearsed."""
    done = gpu_check(tmp_path, number, **typed())
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()[-5000:]
    said = summary(tmp_path)
    assert [step for step, _ in said] == [*listed()[number], "total"]
    skipped = {"tests-triton": "not run: not rehearsed: Triton's compiler"}
    assert all(told.startswith("passed") or skipped[step] == told for step, told in said), said
    tools = {"build": "nvcc", "counters": "ncu"} | dict.fromkeys(listed()["4"][2:], "compute-sanitizer")
    assert all(told.endswith(f"not rehearsed: {tools[step]}") for step, told in said if step in tools), said


@pytest.mark.slow
def test_rehearsal_of_two_steps(tmp_path):
    done = gpu_check(tmp_path, "environment", "stress", SLOWER="12")
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()[-5000:]
    said = dict(summary(tmp_path))
    assert "GPU: REHEARSAL, no GPU" in said["environment"] and said["stress"].endswith("every answer the first one")


def test_the_sanitizers_watch_every_example(monkeypatch, capsys):
    made = [(op, name.split(" dtype=")[0].strip()) for op, name, _ in sanitize.calls("cpu")]
    assert set(made) == {(op, call.name) for op in registry.OPS for call in example_calls.calls(op)}
    monkeypatch.setattr(sanitize, "in_range", lambda result, arguments: not hasattr(result, "path"))
    monkeypatch.setattr(sanitize, "DTYPES", [torch.float32])
    monkeypatch.setattr(sanitize, "VOCABULARIES", (77,))
    with pytest.raises(SystemExit) as exit:
        sanitize.main("cpu")
    assert exit.value.code and "out of range: verify_tree, kseq, drafts" in capsys.readouterr().out


def kernels_of_few_calls():
    """Return the kernels that are launched, and those that are compiled."""
    from tools.cuda_on_cpu.build import load

    module = load("fast")
    module.reset()
    assert all(fine for *_, fine in sanitize.calls("cpu", few=True))
    return {kernel for kernel, _ in module.launches()}, set(module.instances())


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="not among the backends that were asked for")
def test_few_calls_run_every_kernel():
    launched, compiled = backends.there("cuda-on-cpu", kernels_of_few_calls)
    assert launched == compiled - HARNESS and len(launched) > 20


def test_gpu_check_runs_every_file_with_a_test_on_backends(request):
    """gpu_check.sh selects the files of this session that have a test on backends, except that of the graph step."""
    fixtures = on_backends.fixtures()
    items = [item for item in request.session.items if hasattr(item, "callspec")]
    seen = {
        item.path
        for item in items
        if any(x in backends.BACKENDS for name, x in item.callspec.params.items() if name in fixtures)
    }
    selected = set(on_backends.files())
    assert seen - selected <= {on_backends.HERE / "ops/test_cuda_graph.py"}  # the graph step runs it
    assert {"backend", "op_backend", "sweep_backend", "sweep"} <= fixtures
    names = {path.name for path in selected}
    assert "test_rules_turns.py" in names and "test_readme.py" not in names


def test_gpu_check_names_its_steps(tmp_path):
    done = gpu_check(tmp_path, "everything")
    assert done.returncode == 2 and "got everything" in done.stderr

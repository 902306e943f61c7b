# SPDX-License-Identifier: Apache-2.0
"""The tests that a tier selects, the kernels that never ran, and parts of test-all that are not run again."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from support import backends, paths, specialisations, tally, tiers

from tools import test_all

WIDTHS, DTYPES = [1, 5, 33, 1025], [torch.float32, torch.bfloat16]


def item(name, *marks, backend=None, **params):
    """Return a stand-in for a collected test, with one parametrize mark per parameter."""
    marks = [SimpleNamespace(name=mark, args=()) for mark in marks]
    marks += [SimpleNamespace(name="parametrize", args=(argument, ())) for argument in params]
    given = params | ({"op_backend": backend} if backend else {})

    def iter_markers(name=None):
        return [mark for mark in marks if name in (None, mark.name)]

    return SimpleNamespace(
        nodeid=f"{name}[{params}]", iter_markers=iter_markers, callspec=SimpleNamespace(params=given)
    )


def grid(backend):
    return [item("test_x", backend=backend, V=V, dtype=dtype) for V, dtype in product(WIDTHS, DTYPES)]


@pytest.mark.parametrize("backend", tiers.SIMULATED)
def test_a_simulated_device_takes_each_value_once(backend):
    kept = [x.callspec.params for x in tiers.select(grid(backend), "test")]
    assert len(kept) == len(WIDTHS)
    assert [x["V"] for x in kept] == WIDTHS and {x["dtype"] for x in kept} == set(DTYPES)
    assert len(tiers.select(grid(backend), "all")) == len(WIDTHS) * len(DTYPES)


@pytest.mark.parametrize("backend", ["cpu", "cuda", "triton", None])
def test_other_backends_take_all(backend):
    assert len(tiers.select(grid(backend), "test")) == len(WIDTHS) * len(DTYPES)


def test_values_that_go_together_stay_together():
    """(B, K) of one parametrize mark is one value: each pair occurs, not only each B and each K."""
    items = []
    for pair, vocab in product([(3, 1), (3, 7), (5, 1)], [2, 9]):
        one = item("test_x", backend="cuda-on-cpu", vocab=vocab)
        one.callspec.params |= dict(zip("BK", pair))
        more = SimpleNamespace(name="parametrize", args=("B, K", ()))
        one.iter_markers = lambda name=None, of=one.iter_markers, more=more: [*of(name), more]
        items.append(one)
    kept = [x.callspec.params for x in tiers.select(items, "test")]
    assert {(x["B"], x["K"]) for x in kept} == {(3, 1), (3, 7), (5, 1)} and len(kept) == 3


@pytest.mark.parametrize(
    "marks, backend, taken",
    [
        ((), "cpu", ["check", "test", "all"]),
        (("slow",), "cpu", ["test", "all"]),
        (("thorough",), "cpu", ["all"]),
        (("law",), "cuda-on-cpu", []),
        (("law",), "cuda", ["check", "test", "all"]),
        (("one_backend",), "cpu", ["check", "test", "all"]),
        (("one_backend",), "cuda", ["check", "test", "all"]),
        (("one_backend",), "cuda-on-cpu", ["all"]),
        (("slow_in_triton",), "cuda-on-cpu", ["check", "test", "all"]),
        (("slow_in_triton",), "triton-interpret", ["all"]),
    ],
)
def test_marks(marks, backend, taken):
    one = item("test_x", *marks, backend=backend)
    assert [tier for tier in ("check", "test", "all") if tiers.select([one], tier)] == taken


def kernel(rows, stats, METHOD: "constexpr", WIDTH: "constexpr"):  # noqa: F821
    """Stand in for a Triton kernel, of which only the signature is read."""


def test_a_specialisation_that_never_ran_is_listed(monkeypatch):
    launched = SimpleNamespace(fn=kernel)
    row, stats = torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, 4)
    names = specialisations.of_launch(launched, (row.float(), None), {"METHOD": 1, "WIDTH": 64})
    assert names == {name := "kernel: no stats, METHOD=1"}
    others = [((row, None), {"METHOD": 1}), ((row, stats), {"METHOD": 1}), ((row, None), {"METHOD": 2})]
    compiled = names.union(*(specialisations.of_launch(launched, args, constants) for args, constants in others))
    half = "kernel: rows of 16 bits"
    assert compiled == {name, half, "kernel: METHOD=1", "kernel: no stats, METHOD=2"}
    monkeypatch.setattr(specialisations, "triton_compiled", lambda: compiled)
    monkeypatch.setattr(specialisations, "_seen", type(specialisations._seen)(specialisations._seen.default_factory))
    specialisations.merge({"triton-interpret": {"ran": [name], "compiled": []}})
    specialisations.merge({"cuda-on-cpu": {"ran": ["scan<true>"], "compiled": ["scan<false>", "scan<true>"]}})
    missing = specialisations.never_ran()
    assert len(missing) == 4 and missing[0] == "cuda-on-cpu: scan<false>" and f"triton-interpret: {name}" not in missing
    assert specialisations.counts() == {"cuda-on-cpu": (1, 2), "triton-interpret": (1, 4)}


@pytest.mark.parametrize("whole, missing, status", [(True, ["a kernel"], 1), (True, [], 0), (False, ["a kernel"], 0)])
def test_a_whole_session_fails_where_a_kernel_never_ran(monkeypatch, pytestconfig, whole, missing, status):
    conftest = pytestconfig.pluginmanager.get_plugin(str(paths.TESTS / "conftest.py"))
    monkeypatch.setattr(conftest, "_whole", lambda config: whole)
    monkeypatch.setattr(specialisations, "never_ran", lambda: missing)
    monkeypatch.setattr(backends, "ran", dict)
    monkeypatch.setattr(tally, "over_the_cap", list)
    session = SimpleNamespace(exitstatus=0, config=SimpleNamespace())
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == status


def test_a_part_that_passed_is_not_run_again(monkeypatch, tmp_path):
    runs, status = [], {"cpu": 0, "gates": 1}

    def run(command, **_):
        part = next(word for word in command if word.startswith("--junitxml")).rpartition("/")[2].removesuffix(".xml")
        runs.append(part)
        return SimpleNamespace(returncode=status[part])

    monkeypatch.setattr(test_all, "OUT", tmp_path)
    monkeypatch.setattr(test_all, "PARTS", {name: test_all.PARTS[name] for name in status})
    monkeypatch.setattr(test_all, "tree_state", lambda: state)
    monkeypatch.setattr(test_all.subprocess, "run", run)

    def call(*arguments):
        runs.clear()
        monkeypatch.setattr(test_all.sys, "argv", ["test_all", *arguments])
        with pytest.raises(SystemExit) as ended:
            test_all.main()
        return list(runs), ended.value.code

    state = "one tree"
    assert call() == (["cpu", "gates"], "failed: gates")
    assert call() == (["gates"], "failed: gates"), "what failed is run again, what passed is not"
    assert call("--again")[0] == ["cpu", "gates"] and call("cpu")[0] == ["cpu"]
    status["gates"] = 0
    assert call() == (["gates"], 0) and call() == ([], 0)
    state = "another tree"
    assert call()[0] == ["cpu", "gates"]


def test_the_tree_s_state_is_that_of_its_files(monkeypatch, tmp_path):
    import subprocess

    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(test_all, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("1")
    first = test_all.tree_state()
    assert test_all.tree_state() == first
    (tmp_path / "a.py").write_text("2")
    assert test_all.tree_state() != first
    (tmp_path / "a.py").write_text("1")
    assert test_all.tree_state() == first
    (tmp_path / "b.py").write_text("")
    assert test_all.tree_state() != first

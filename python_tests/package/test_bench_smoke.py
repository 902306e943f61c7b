# SPDX-License-Identifier: Apache-2.0
"""bench.smoke with the simulated device or the CPU as its GPU: right results pass, and wrong results are found."""

import os

import pytest
import torch
from support import backends

pytest.importorskip("bench.run", reason="needs the source tree's bench")

from bench import rehearsal, smoke  # noqa: E402

VARIABLES = (smoke.PATH, smoke.OVERLAP)
ONLY = {
    ("verify_chain", "stats"),
    ("verify_chain", "filters"),
    ("sample", "k=1"),
    ("row_stats", "rows"),
    ("kseq_rho", "k=4"),
}


def there(call, arguments, switches):
    """Run smoke.answer under these environment variables, which choose the ops' path. Called in the simulated device's
    process."""
    for name, value in switches.items():
        os.environ[name] = value
    try:
        return smoke.answer(call, arguments)
    finally:
        for name in switches:
            del os.environ[name]


@pytest.fixture
def simulated(monkeypatch):
    """Run a call on the simulated kernels if it has its own arguments, and on the CPU if it has a copy of them."""
    on_cpu = smoke.answer

    def answer(call, arguments):
        if arguments is not call.arguments:
            return on_cpu(call, arguments)
        switches = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        return backends.there("cuda-on-cpu", there, call, arguments, switches)

    monkeypatch.setattr(smoke, "answer", answer)


def some(monkeypatch, kept):
    every = smoke.calls
    monkeypatch.setattr(smoke, "calls", lambda B, V: (call for call in every(B, V) if kept(call)))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.usefixtures("simulated")
@pytest.mark.skipif("cuda-on-cpu" not in backends.NAMES, reason="not among the backends that were asked for")
def test_the_kernels_pass(capsys):
    """Rows of three chunks and a tail, in a batch of 2 requests and in one that is not small (kFewPositions)."""
    with rehearsal.no_gpu():
        assert smoke.check([2, 25], 3 * 1024 + 77) == []
    assert f"each on {1 + len(smoke.WAYS)} paths and the CPU: 0 faults" in capsys.readouterr().out


def changed(monkeypatch, op, change, ways=()):
    """Change the GPU's results of an op on the given paths (all paths by default)."""
    honest = smoke.answer

    def answer(call, arguments):
        found = honest(call, arguments)
        here = not ways or any(name in os.environ for name in ways)
        return change(found) if call.op == op and arguments is call.arguments and here else found

    monkeypatch.setattr(smoke, "answer", answer)


def one(name, make):
    """Return a function that changes one field of a result."""
    return lambda found: found | {name: make(found[name].clone())}


def at_first(value):
    def put(x):
        x[0] = x[0] + value
        return x

    return put


WRONG = {
    "a token": ("verify_chain", one("tokens", at_first(1)), "1 requests differ from the CPU's, the first is 0"),
    "a count": ("verify_chain", one("num_accepted", at_first(1)), "1 requests differ from the CPU's, the first is 0"),
    "a status": ("verify_chain", one("status", at_first(1)), "1 requests differ from the CPU's, the first is 0"),
    "a logprob": ("verify_chain", one("logprobs", at_first(1e-3)), "1 requests differ from the CPU's, the first is 0"),
    "every token": ("sample", one("tokens", lambda x: x + 1), "requests differ from the CPU's, the first is 0"),
    "a sum": ("row_stats", one("stats", at_first(1e-3)), "1 requests differ from the CPU's, the first is 0"),
    "no number": ("row_stats", one("stats", lambda x: x * torch.nan), "requests differ from the CPU's, the first is 0"),
    "an acceptance": ("kseq_rho", one("p_acc", at_first(1e-3)), "1 requests differ from the CPU's, the first is 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_answer_is_seen(what, monkeypatch, capsys):
    op, change, told = WRONG[what]
    some(monkeypatch, lambda call: (call.op, call.name) in ONLY and call.op == op)
    changed(monkeypatch, op, change)
    with rehearsal.no_gpu():
        faults = smoke.check([3], 500)
    assert faults and all(fault.startswith(op) and told in fault for fault in faults), faults


def test_other_bits_by_another_way_are_seen(monkeypatch, capsys):
    some(monkeypatch, lambda call: (call.op, call.name) == ("verify_chain", "stats"))
    changed(monkeypatch, "verify_chain", one("logprobs", at_first(2.0**-20)), ways=(smoke.PATH,))
    with rehearsal.no_gpu():
        assert smoke.check([3], 500) == ["verify_chain stats B=3: different bits on path streaming, clusters"]


def test_an_answer_within_rounding_is_none(monkeypatch, capsys):
    """A request whose margin says that rounding decides may differ. Here the margin of every request says so."""
    some(monkeypatch, lambda call: (call.op, call.name) == ("verify_chain", "stats"))
    changed(monkeypatch, "verify_chain", one("tokens", at_first(1)))
    honest = smoke.sk.reference.banded.verify_chain
    near = lambda **given: honest(**given)._replace(margin=torch.tensor([0.5]))
    monkeypatch.setattr(smoke.sk.reference.banded, "verify_chain", near)
    with rehearsal.no_gpu():
        assert smoke.check([3], 500) == []
    assert "0 faults; rounding decides 1 requests" in capsys.readouterr().out


def test_the_reference_takes_every_call():
    """The reference takes the same keywords as the op, one request at a time."""
    with rehearsal.no_gpu():
        judged = [call for call in smoke.calls(2, 100) if call.op in ("verify_chain", "verify_tree", "sample")]
        for call in judged:
            margin = getattr(smoke.sk.reference.banded, call.op)(**smoke.of(call.arguments, torch.tensor([1]))).margin
            assert margin.shape == (1,), call.name
    assert len(judged) == 15


def test_a_gpu_without_the_ops_is_told(monkeypatch):
    monkeypatch.setattr(smoke.sk.backends, "chosen", lambda: "triton")
    monkeypatch.setattr(smoke.sk.backends, "misfit", lambda: "a GPU of arch 8.7 is here")
    monkeypatch.setattr(smoke.sk.backends, "lacks", lambda name: None)
    with pytest.raises(SystemExit, match="GPU tensors run on triton: a GPU of arch 8.7 is here"):
        smoke.main()

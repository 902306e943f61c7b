# SPDX-License-Identifier: Apache-2.0
"""Every op under CUDA-graph capture and replay, on other streams, on another device, and without waiting for the
device.

The last test runs the same checks without a GPU, on a stand-in that replays what it recorded: it shows that they run,
and that they catch an op that cannot be replayed.
"""

import functools

import pytest
import torch
from support import backends, graphs
from support.surface import same

from specdec_kernels import example_calls
from specdec_kernels.registry import OPS

GPU = [name for name in ("cuda", "triton") if name in backends.NAMES and not backends.why_not(name)]
ROWS = {"V": 3001, "dtype": torch.bfloat16}  # three chunks, the last with an odd tail
CALLS = {op: example_calls.few(op) for op in OPS}
on_gpu = pytest.mark.parametrize(
    "gpu, op, name", [(gpu, op, call.name) for gpu in GPU for op in OPS for call in backends.served(gpu, op, CALLS[op])]
)


@functools.cache
def inputs_of(op, seed):
    return {call.name: call.arguments for call in example_calls.calls(op, **ROWS, seed=seed)}


def one(op, name, seed=0):
    return inputs_of(op, seed)[name]


@functools.cache
def seeds(op, name):
    """Return seed 0 and up to two seeds whose results differ from its result. Some seeds do not: in padded buffers, no
    request may be present."""
    results = {seed: graphs.call(op, one(op, name, seed)) for seed in range(9)}
    return 0, *[seed for seed in results if not same(results[seed], results[0])][:2]


def sets(op, name):
    return [one(op, name, seed) for seed in (*seeds(op, name), 0)]


@on_gpu
def test_replay_follows_its_inputs(gpu, op, name):
    inputs = sets(op, name)
    left, want = backends.there(gpu, graphs.replayed, op, inputs)
    assert not same(want[0], want[1])
    for got, plain in zip(left, want):
        assert same(got, plain)


@on_gpu
def test_streams_do_not_disturb_each_other(gpu, op, name):
    inputs = sets(op, name)
    got, want = backends.there(gpu, graphs.on_streams, op, inputs)
    for a, b in zip(got, want):
        assert same(a, b)


@on_gpu
def test_never_waits_for_the_device(gpu, op, name):
    inputs = one(op, name)
    backends.there(gpu, graphs.without_waiting, op, inputs)


@on_gpu
def test_second_device(gpu, op, name):
    if backends.there(gpu, graphs.devices) < 2:
        pytest.skip(f"{gpu}: one GPU here")
    inputs = one(op, name)
    got, want, places, current = backends.there(gpu, graphs.on_second_device, op, inputs)
    assert set(places) == {"cuda:1"} and current == 0
    assert same(got, want)


@pytest.mark.parametrize("op, name", [(op, call.name) for op in OPS for call in CALLS[op]])
def test_the_checks_run_and_can_fail(op, name, monkeypatch):
    rehearsal = pytest.importorskip("bench.rehearsal", reason="needs the source tree's bench")
    inputs = sets(op, name)
    with rehearsal.no_gpu():
        left, want = graphs.replayed(op, inputs)
        assert all(map(same, left, want)) and not same(want[0], want[1])
        assert all(map(same, *graphs.on_streams(op, inputs, times=2)))
        graphs.without_waiting(op, inputs[0])

        kept = getattr(graphs.sk, op)(**inputs[0])  # acts like an op whose kernels are not in the graph
        monkeypatch.setattr(graphs.sk, op, lambda **_: kept)
        left, _ = graphs.replayed(op, inputs)
        assert not all(map(same, left, want))

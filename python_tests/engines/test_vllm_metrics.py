# SPDX-License-Identifier: Apache-2.0
"""The counts that vLLM's plugin reports, from the ops' status to vLLM's metrics and stats log."""

import os
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from support import vllm_stub
from support.vllm_engine import PROMPTS, call, draft, engine
from support.vllm_step import V, never

import specdec_kernels
from specdec_kernels import registry
from specdec_kernels.integrations.vllm import fallback, metrics, verify


@pytest.fixture(autouse=True)
def nothing_yet(monkeypatch):
    monkeypatch.setattr(metrics, "_statuses", {})
    fallback.unsent.clear()
    yield
    fallback.unsent.clear()


class Metric:
    """A stand-in for prometheus_client's Counter and Gauge that keeps its values by labels."""

    made: dict = {}

    def __init__(self, name, _documentation, labelnames, **_):
        self.names, self.values = labelnames, Counter()
        Metric.made[name] = self.values

    def labels(self, *labels):
        assert len(labels) == len(self.names)
        add = lambda n: self.values.update({labels: n})
        return SimpleNamespace(inc=add, set=lambda x: self.values.__setitem__(labels, x))


def reported():
    """Return the counts that the worker's next output carries."""
    output = SimpleNamespace()
    metrics.made_output(lambda self: None, output)
    return getattr(output, "specdec", None)


@pytest.mark.usefixtures("vllm_modules")
def test_a_worker_counts_its_steps_and_the_requests_status():
    """Of three requests, one has a NaN row in both steps, and another in the second step only."""
    assert reported() is None
    metadata = vllm_stub.metadata([1, 0, 0], torch.tensor([3]))
    for bad in ([0], [0, 2]):
        rows = torch.zeros(4, V).index_fill(0, torch.tensor(bad), torch.nan)
        verify.forward(never, vllm_stub.rejection_sampler(), metadata, None, rows, vllm_stub.sampling(3))
    fallback.note("processed logprobs")
    assert reported() == {"steps": 2, "left: processed logprobs": 1, "status: invalid row": 3}
    assert reported() is None  # once
    rows[:] = 0
    verify.forward(never, vllm_stub.rejection_sampler(), metadata, None, rows, vllm_stub.sampling(3))
    assert reported() == {"steps": 1}


def test_each_status_bit_by_its_name():
    status = torch.tensor([1, 2, 2, 4, 7, 0], dtype=torch.int32)
    metrics.saw(status)
    wanted = {"invalid row": 2, "empty residual": 3, "invalid draft": 2}
    assert reported() == {f"status: {name}": n for name, n in wanted.items()}
    names = {"invalid row": "INVALID_ROW", "empty residual": "EMPTY_RESIDUAL", "invalid draft": "INVALID_DRAFT"}
    assert {name: getattr(registry, f"STATUS_{of}") for name, of in names.items()} == metrics.BITS


def test_from_the_scheduler_to_the_loggers(caplog):
    """Steps without stats (a logger may be off for some) are reported with the next stats."""
    stats = dataclass(type("SchedulerStats", (), {"__annotations__": {}}))
    metrics.declare(stats)
    assert stats().specdec is None and "specdec" in stats.__dataclass_fields__
    assert stats.__annotations__["specdec"] == dict[str, int] | None
    scheduler, of_core = SimpleNamespace(), {0: SimpleNamespace(scheduler_stats=None)}
    step = lambda counts: metrics.update_from_output(
        lambda self, *given: of_core, scheduler, None, SimpleNamespace(specdec=counts)
    )
    assert step({"steps": 2, "left: fly": 1})[0].scheduler_stats is None
    of_core[0].scheduler_stats = stats()
    sent = step({"steps": 1, "status: invalid row": 4})[0].scheduler_stats
    assert sent.specdec == {"steps": 3, "left: fly": 1, "status: invalid row": 4}
    of_core[0].scheduler_stats = stats()
    assert step(None)[0].scheduler_stats.specdec is None

    prometheus = SimpleNamespace(_gauge_cls=Metric, _counter_cls=Metric, per_engine_labelvalues={0: ["m", "0"]})
    nothing = lambda *args, **kwargs: None
    metrics.made_prometheus(nothing, prometheus, None)
    on = ("m", "0", specdec_kernels.__version__)
    assert Metric.made["vllm:specdec_on"][on] == 0
    metrics.record_prometheus(nothing, prometheus, None, None)  # vLLM records without stats too
    metrics.record_prometheus(nothing, prometheus, stats(), None)
    assert Metric.made["vllm:specdec_on"][on] == 0
    for _ in range(2):
        metrics.record_prometheus(nothing, prometheus, sent, None, mm_cache_stats=None, engine_idx=0)
    assert Metric.made["vllm:specdec_on"][on] == 1
    assert Metric.made["vllm:specdec_steps"] == {("m", "0", "specdec", ""): 6, ("m", "0", "vllm", "fly"): 2}
    assert Metric.made["vllm:specdec_status"] == {("m", "0", "invalid row"): 8}

    caplog.set_level("INFO", "vllm.specdec_kernels")
    logger = SimpleNamespace()
    for each in (None, stats(), sent, sent):
        metrics.record_log(nothing, logger, each, None, engine_idx=0)
    for _ in range(2):
        metrics.write_log(nothing, logger)
    (line,) = caplog.messages
    assert line.endswith("steps verified: 6, left to vLLM: 2, fly: 2, invalid row: 8")


@pytest.mark.thorough
@pytest.mark.skipif("SPECDEC_TEST_VLLM" not in os.environ, reason="SPECDEC_TEST_VLLM names no environment")
def test_in_vllm_with_its_engine_in_another_process():
    """A request for processed logprobs takes vLLM's path. The API's process reports this, and the steps that the plugin
    verified."""
    short = {"max_tokens": 6, "temperature": 1.0}
    calls = [call(PROMPTS[:2], [1, 2], **short), call(PROMPTS[:1], seeds=None, logprobs=2, **short)]
    (answer,), log = engine(
        (draft("shallower"), calls), target="shallow", engine={"logprobs_mode": "processed_logprobs"}
    )
    seen = answer["metrics"]
    assert seen[f"vllm:specdec_on 0 {specdec_kernels.__version__}"] == 1
    assert seen["vllm:specdec_steps 0 specdec "] >= 3 and seen["vllm:specdec_steps 0 vllm processed logprobs"] >= 2
    assert not any(name.startswith("vllm:specdec_status") for name in seen)
    line = next(x for x in log.splitlines() if "steps verified" in x)
    assert "left to vLLM" in line and "processed logprobs" in line
    assert answer["drafted"] > 0

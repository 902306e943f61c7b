# SPDX-License-Identifier: Apache-2.0
"""Counts of the plugin's steps in vLLM's own metrics and stats log, also if workers run in other processes.

Counts are sent with objects that vLLM sends anyway: as an attribute of a worker's ModelRunnerOutput to the scheduler,
and as a field of SchedulerStats to the loggers of the API server. Every process declares that field.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import specdec_kernels
from specdec_kernels import registry
from specdec_kernels.integrations.vllm.fallback import LEFT, log, unsent

FIELD = "specdec"  # attribute of ModelRunnerOutput, field of SchedulerStats
STEPS, STATUS = "steps", "status: "  # names of counts besides LEFT + reason; a bit's name follows STATUS
BITS = {
    "invalid row": registry.STATUS_INVALID_ROW,
    "empty residual": registry.STATUS_EMPTY_RESIDUAL,
    "invalid draft": registry.STATUS_INVALID_DRAFT,
}


class Statuses:
    """Counts of requests by status bit, kept on their device and read once they have been copied to the host."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros(len(BITS), dtype=torch.int64, device=device)
        self.bits = torch.zeros(len(BITS), dtype=torch.int32, device=device)
        for i, bit in enumerate(BITS.values()):
            self.bits[i].fill_(bit)  # fill_ needs no copy from the host
        self.copy = torch.zeros(len(BITS), dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self.reported = [0] * len(BITS)
        self.arrived: Any = None

    def add(self, status: torch.Tensor) -> None:
        self.total += (status[:, None] & self.bits != 0).sum(0)

    def read(self) -> None:
        """Add the counts on the host to `unsent`. Those of a GPU come from an earlier call, as this does not wait."""
        if self.arrived is None or self.arrived.query():
            if self.total.device.type != "cuda":
                self.copy.copy_(self.total)
            for i, (name, n) in enumerate(zip(BITS, self.copy.tolist())):
                if n > self.reported[i]:
                    unsent[STATUS + name] += n - self.reported[i]
                    self.reported[i] = n
            if self.total.device.type == "cuda":
                self.copy.copy_(self.total, non_blocking=True)
                self.arrived = torch.cuda.Event()
                self.arrived.record()


_statuses: dict[torch.device, Statuses] = {}


def served() -> None:
    """Count a step that the plugin has verified."""
    unsent[STEPS] += 1


def saw(status: torch.Tensor) -> None:
    """Count the bits of a call's status [B]."""
    if status.device not in _statuses:
        _statuses[status.device] = Statuses(status.device)
    _statuses[status.device].add(status)


def made_output(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement of ``ModelRunnerOutput.__init__``: attach the counts since the last output."""
    upstream(self, *args, **kwargs)
    for statuses in _statuses.values():
        statuses.read()
    if unsent:
        setattr(self, FIELD, dict(unsent))
        unsent.clear()


def update_from_output(upstream: Callable, self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
    """Replacement of ``Scheduler.update_from_output``: pass the counts on with the scheduler's stats."""
    mine = self.__dict__.setdefault("specdec_counts", Counter())
    mine.update(getattr(model_runner_output, FIELD, None) or {})
    outputs = upstream(self, scheduler_output, model_runner_output)
    stats = [x.scheduler_stats for x in outputs.values() if x.scheduler_stats is not None]
    if stats and mine:
        setattr(stats[0], FIELD, dict(mine))
        mine.clear()
    return outputs


def declare(scheduler_stats: Any) -> None:
    """Add our field to the class SchedulerStats, so that it is sent between processes and read."""
    kind = dict[str, int] | None
    field: Any = dataclasses.field(default=None)
    regular = dataclasses._FIELD  # type: ignore[attr-defined]
    for name, x in {"name": FIELD, "type": kind, "_field_type": regular}.items():
        setattr(field, name, x)
    scheduler_stats.__annotations__[FIELD] = kind
    scheduler_stats.__dataclass_fields__[FIELD] = field
    setattr(scheduler_stats, FIELD, None)


def made_prometheus(upstream: Callable, self: Any, vllm_config: Any, engine_indexes: Any = None) -> None:
    """Replacement of ``PrometheusStatLogger.__init__``: make the plugin's metrics too."""
    upstream(self, vllm_config, engine_indexes)
    labels, engines = ["model_name", "engine"], self.per_engine_labelvalues
    text = "1 once the engine's worker has reported a step of the specdec_kernels plugin."
    gauge = self._gauge_cls("vllm:specdec_on", text, [*labels, "version"], multiprocess_mode="mostrecent")
    self.specdec_on = {i: gauge.labels(*values, specdec_kernels.__version__) for i, values in engines.items()}
    for each in self.specdec_on.values():
        each.set(0)
    text = "Number of steps, by who verified them and, if vLLM did, why."
    self.specdec_steps = self._counter_cls("vllm:specdec_steps", text, [*labels, "verified_by", "reason"])
    text = "Number of requests of a step whose status had this bit (docs: status bits)."
    self.specdec_status = self._counter_cls("vllm:specdec_status", text, [*labels, "status"])


def record_prometheus(
    upstream: Callable, self: Any, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None,
    engine_idx: int = 0,
) -> None:  # fmt: skip
    """Replacement of ``PrometheusStatLogger.record``: add the counts to the plugin's metrics."""
    upstream(self, scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
    found = getattr(scheduler_stats, FIELD, None)
    if not found:
        return
    labels = self.per_engine_labelvalues[engine_idx]
    self.specdec_on[engine_idx].set(1)
    for name, n in found.items():
        if name.startswith(STATUS):
            self.specdec_status.labels(*labels, name.removeprefix(STATUS)).inc(n)
        else:
            by = ("specdec", "") if name == STEPS else ("vllm", name.removeprefix(LEFT))
            self.specdec_steps.labels(*labels, *by).inc(n)


def record_log(upstream: Callable, self: Any, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement of ``LoggingStatLogger.record``: add the counts to those of this interval."""
    upstream(self, scheduler_stats, *args, **kwargs)
    self.__dict__.setdefault("specdec_counts", Counter()).update(getattr(scheduler_stats, FIELD, None) or {})


def write_log(upstream: Callable, self: Any) -> None:
    """Replacement of ``LoggingStatLogger.log``: write the interval's counts after vLLM's line, if there are any."""
    upstream(self)
    found = self.__dict__.pop("specdec_counts", None)
    if found:
        rest = sum(n for name, n in found.items() if name.startswith(LEFT))
        named = [f"{name.removeprefix(LEFT).removeprefix(STATUS)}: {n}" for name, n in found.items() if name != STEPS]
        text = "specdec_kernels %s: steps verified: %d, left to vLLM: %d%s"
        log.info(text, specdec_kernels.__version__, found[STEPS], rest, "".join(f", {x}" for x in sorted(named)))

# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.rehearsal MODULE [arguments]``: run a module's GPU code without a GPU.

Tensors on "cuda" are created on the CPU, there is only one stream, graphs record operators and call them again, and
benchmark cases are small. Almost every line of a real run is executed, but no printed number means anything. Steps that
need a GPU tool are skipped, and printed as ``not rehearsed: TOOL``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import runpy
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench import clock

PROPERTIES = SimpleNamespace(
    name="REHEARSAL, no GPU", major=9, minor=0, multi_processor_count=1, L2_cache_size=1 << 16, total_memory=1 << 31
)
LARGEST = 2000  # the most rows, ids or calls of a case; enough ids for every case of bench.rules


def active() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_properties(0) is PROPERTIES


def smaller(build: Callable) -> Callable:
    """Return a case's partial function. In a rehearsal its integer arguments are at most LARGEST."""
    if not active() or not isinstance(build, functools.partial):
        return build
    return functools.partial(build.func, *map(_at_most, build.args), **build.keywords)


def _at_most(x: object) -> object:
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(
            x, **{field.name: _at_most(getattr(x, field.name)) for field in dataclasses.fields(x)}
        )
    return min(x, LARGEST) if type(x) is int else x


def _on_cpu(device: object) -> object:
    return "cpu" if isinstance(device, (str, torch.device)) and str(device).startswith("cuda") else device


class _NoDevice(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = {key: _on_cpu(value) for key, value in (kwargs or {}).items()}
        return function(*map(_on_cpu, args), **kwargs)


class _Generator(torch.Generator):
    def __new__(cls, device: object = "cpu"):
        return super().__new__(cls, _on_cpu(device))


class _Event:
    def __init__(self, **_: object) -> None:
        self.at = 0.0

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: _Event) -> float:
        return (other.at - self.at) * 1e3


class _Graph:
    """A stand-in for CUDAGraph: it records operator calls during capture, and replays them on the same tensors."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable, tuple, dict, object]] = []

    def replay(self) -> None:
        with torch._C.DisableTorchFunction():  # devices were checked during the capture
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again)):
                    if isinstance(old, torch.Tensor) and old is not new:
                        old.copy_(new)


class _Capture(TorchDispatchMode):
    def __init__(self, graph: _Graph, **_: object) -> None:
        super().__init__()
        self.graph = graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.graph.calls.append((function, args, kwargs or {}, result))
        return result


class _Stream:
    def wait_stream(self, other: object) -> None:
        pass


@contextlib.contextmanager
def no_gpu(calls: TorchFunctionMode | None = None):
    """Replace torch.cuda by stand-ins that need no GPU, in a with block.

    calls: a mode for torch's calls, instead of the one that creates tensors on the CPU.
    """
    stand_ins = {
        "is_available": lambda: True,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "current_stream": lambda *_: _Stream(),
        "Stream": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "Event": _Event,
        "CUDAGraph": _Graph,
        "graph": _Capture,
        "graph_pool_handle": lambda: None,
        "set_sync_debug_mode": lambda _: None,
    }
    with contextlib.ExitStack() as stack:
        for name, value in stand_ins.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name in ("start", "stop"):
            stack.enter_context(mock.patch.object(torch.cuda.profiler, name, lambda: None))
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        stack.enter_context(mock.patch.object(clock, "LEAST", 1e-5))
        stack.enter_context(_NoDevice() if calls is None else calls)
        yield


if __name__ == "__main__":
    from bench import rehearsal  # the module that others import, not this copy of it as __main__

    with rehearsal.no_gpu():
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

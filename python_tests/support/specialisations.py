# SPDX-License-Identifier: Apache-2.0
"""The kernel specialisations that are compiled, and those that the session ran on the simulated devices.

A specialisation that is listed as never run has been checked by its compiler only. The simulated CUDA device lists
every instance that a launch was compiled for (tools/cuda_on_cpu/grid.h). For Triton the list is that of the launches
that are compiled ahead of time (support/aot.py).

Launches are distinguished by their kernel, their modes and the arguments that are absent, and kernels by which of their
rows have 16-bit entries. Block sizes are not distinguished, since the interpreter has its own. Nor are launches with
given uniforms and with a seed: one small Triton function decides between these for all kernels.
"""

import functools
import inspect
import re
from collections import defaultdict

import torch
from support import paths

SIZES = (
    "BLOCK",
    "CHUNKS",
    "DRAWS",
    "FEW",
    "POSITIONS",
    "ROWS",
    "TILE",
    "TOGETHER",
    "WIDTH",
)  # constants that are numbers

# Kernels of the simulated device's own tests, which belong to no op
HARNESS = {
    name
    for file in (paths.ROOT / "tools/cuda_on_cpu").glob("sample*.cu")
    for name in re.findall(r"\[\] \{ return \"(\w+)\"; \}", file.read_text())
}

_seen = defaultdict(lambda: {"ran": set(), "compiled": set()})  # by backend


def merge(more):
    """Add what another process of the session has run."""
    for backend, names in more.items():
        for what in names:
            _seen[backend][what] |= set(names[what])


def state():
    """Return what this process has run, in types that can be sent."""
    return {backend: {what: sorted(names) for what, names in seen.items()} for backend, seen in _seen.items()}


def compiled(backend):
    return triton_compiled() if backend.startswith("triton") else _seen[backend]["compiled"]


def counts():
    """Return {backend: (number run, number compiled)}."""
    every = {backend: compiled(backend) for backend in sorted(_seen)}
    return {backend: (len(all & _seen[backend]["ran"]), len(all)) for backend, all in every.items()}


def never_ran():
    return [
        f"{backend}: {name}" for backend in sorted(_seen) for name in sorted(compiled(backend) - _seen[backend]["ran"])
    ]


# ---- CUDA on the CPU: in the process whose ops are the simulated device's -----------------------------------------


def cuda_state(module):
    instances = {name: n for name, n in module.instances().items() if name not in HARNESS}
    return {"ran": {name for name, n in instances.items() if n}, "compiled": set(instances)}


# ---- Triton: in the process that interprets it, and in one that compiles ------------------------------------------

_launched = set()


def leaves(name, x):
    """Return [(name, part)] of a value. Tuples of arguments are taken apart."""
    if not isinstance(x, tuple):
        return [(name, x)]
    fields = getattr(x, "_fields", range(len(x)))
    return [leaf for field, part in zip(fields, x) for leaf in leaves(f"{name}.{field}", part)]


def telling(name, x, constant):
    """Return the part of a specialisation's name that comes from one argument of a launch, or None."""
    if x is None:
        return f"no {name}"
    constant = constant or type(x).__name__ == "constexpr"  # of triton.language, in a tuple of arguments
    return f"{name}={getattr(x, 'value', x)}" if constant and name.split(".")[-1] not in SIZES else None


def of_launch(kernel, args, constants):
    """Return the names of a Triton launch: one for its modes and absent arguments, and one for each 16-bit row."""
    parameters = inspect.signature(kernel.fn).parameters
    given = dict(zip(parameters, args)) | {name: x for name, x in constants.items() if name in parameters}
    kernel = kernel.fn.__name__
    parts = [
        (part, x, "constexpr" in str(parameters[name].annotation))
        for name, value in given.items()
        for part, x in leaves(name, value)
        if not part.startswith("random.")
    ]
    modes = ", ".join(filter(None, (telling(*part) for part in parts)))
    half = (name for name, x, _ in parts if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16))
    return {f"{kernel}: {modes}", *(f"{kernel}: {name} of 16 bits" for name in half)}


def note_triton_launches():
    """Record every launch of this process, which interprets Triton, from now on."""
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def noted(self, *args, grid, warmup, **kwargs):
        _launched.update(of_launch(self, args, kwargs))
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = noted


def triton_state():
    return {"ran": set(_launched), "compiled": set()}


@functools.cache
def triton_compiled():
    from support import aot

    from specdec_kernels.triton.core import launch

    launch.recorded = []
    try:
        for dtype in (torch.bfloat16, torch.float32):
            for _, call in aot.every_call(dtype, 151_936):
                call()
        return set().union(*(of_launch(kernel, args, constants) for kernel, args, constants, _ in launch.recorded))
    finally:
        launch.recorded = None

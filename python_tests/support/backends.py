# SPDX-License-Identifier: Apache-2.0
"""One way to call an op on every backend. Tests take the fixture `backend` and call run(op, backend, ...).

SPECDEC_TEST_BACKENDS selects backends by name, separated by commas. `reference` runs the tests against the float64
reference, as a test of the tests.
"""

import functools
import importlib.util
import os
from typing import NamedTuple

import torch
from support import flat, tiers
from support.worker import Worker, specialisations_run


class Backend(NamedTuple):
    environment: dict | None = None  # environment of the process it runs in; None: this process
    device: str = "cpu"
    slower: int = 1  # the factor by which a grid of inputs must be smaller: see scale()


BACKENDS = {
    "cpu": Backend(),
    "cuda-on-cpu": Backend({"SPECDEC_BACKEND": "cpu", "SPECDEC_CUDA_ON_CPU": "fast"}, slower=4),
    "triton-interpret": Backend({"SPECDEC_BACKEND": "triton", "TRITON_INTERPRET": "1"}, slower=8),
    "cuda": Backend({"SPECDEC_BACKEND": "cuda"}, "cuda"),
    "triton": Backend({"SPECDEC_BACKEND": "triton"}, "cuda"),
    "cuda-on-cpu-checked": Backend(
        {"SPECDEC_BACKEND": "cpu", "SPECDEC_CUDA_ON_CPU": "checked"}, slower=20
    ),  # every access is checked
    "reference": Backend(slower=4),
}
# The CPU's instruction sets that can run here, each in its own process
ISAS = ["base", "avx2", "avx512"][: {"AVX512": 3, "AVX2": 2}.get(torch.backends.cpu.get_cpu_capability(), 1)]
BACKENDS |= {f"cpu-{isa}": Backend({"SPECDEC_BACKEND": "cpu", "SPECDEC_ISA": isa}) for isa in ISAS}
EVERY = "cpu" if tiers.TIER == "check" else "cpu,cuda-on-cpu,triton-interpret,cuda,triton"
NAMES = os.environ.get("SPECDEC_TEST_BACKENDS", EVERY).split(",")
_workers = {}


def instruction_sets(name):
    return [f"cpu-{isa}" for isa in ISAS] if name == "cpu" and tiers.TIER != "check" else [name]


@functools.cache
def why_not(name):
    """Return why a backend cannot run here, or None."""
    from specdec_kernels.backends import lacks, misfit

    if BACKENDS[name].device == "cuda" and not torch.cuda.is_available():
        return "no GPU here"
    if name == "triton-interpret":
        return None if importlib.util.find_spec("triton") else "triton is not installed"
    return (lacks(name) if name in ("cuda", "triton") else None) or (misfit() if name == "cuda" else None)


def scale(n, backend, least=14):
    """Return how many of n inputs a test takes on a backend.

    Where kernels are simulated, it takes fewer, but at least `least` (every kind of row then occurs twice). In `make
    test` both simulated devices take the same number, so that they share the reference's results. There the CPU takes
    half of a large batch, since the reference's loops take most of the time.
    """
    slower = BACKENDS[backend].slower
    if tiers.TIER != "all" and slower == 1 and BACKENDS[backend].device == "cpu":
        return min(n, max(least, 64, n // 2))
    return min(n, max(least, n // (slower if tiers.TIER == "all" or slower == 1 else max(slower, 16))))


def serves(backend, op, arguments):
    """Return whether a backend supports a call: Triton has no rules on trees."""
    rule = arguments.get("rule")
    return not (backend.startswith("triton") and op == "verify_tree") or rule is None or str(rule) == "exact"


def served(backend, op, calls):
    """Return the example calls that a backend supports."""
    return [call for call in calls if serves(backend, op, call.arguments)]


def there(backend, function, *args, **kwargs):
    """Run a module-level function(*args, **kwargs) in the process where torch.ops.specdec.* is this backend's."""
    chosen = BACKENDS[backend]
    if chosen.environment is None:
        return function(*args, **kwargs)
    if backend not in _workers or not _workers[backend].alive():
        _workers[backend] = Worker(backend, chosen.environment, chosen.device)
    return _workers[backend].call(function, *args, **kwargs)


def ran():
    """Return what the simulated devices of this process have run, by backend."""
    alive = {name: worker for name, worker in _workers.items() if name in tiers.SIMULATED and worker.alive()}
    return {name: worker.call(specialisations_run) for name, worker in alive.items()}


def public(op, *args, **kwargs):
    import specdec_kernels
    from specdec_kernels import example_calls

    return example_calls.outcome(op, getattr(specdec_kernels, op), *args, **kwargs)


def as_on_gpu(op, *args, **kwargs):
    from support.as_on_gpu import AsOnGpu

    with AsOnGpu():
        return public(op, *args, **kwargs)


def run_without_values(op, backend, *args, **kwargs):
    """Call an op as run() does, but check no values before kernels run, so that invalid values reach the kernels."""
    args, kwargs = flat.folded(op, args, kwargs)
    return there(backend, as_on_gpu if backend == "triton-interpret" else public, op, *args, **kwargs)


def run(op, backend, *args, **kwargs):
    """Call the op's public function on CPU tensors, or with a flat call (flat.py). Results are copied back to the CPU.

    The caller's arguments are not modified. Arguments that the op writes to are copied, and the copies follow the
    result, as in example_calls.outcome.
    """
    args, kwargs = flat.folded(op, args, kwargs)
    if backend == "reference":
        from support import answers

        from specdec_kernels import example_calls

        return example_calls.outcome(op, getattr(answers, op), *args, **kwargs)
    return there(backend, public, op, *args, **kwargs)


def call(op, backend):
    """Return run() as a function of the op's public arguments."""
    return functools.partial(run, op, backend)

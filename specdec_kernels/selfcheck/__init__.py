# SPDX-License-Identifier: Apache-2.0
"""Statistical check that the installed ops draw from the right distribution.

Run `python -m specdec_kernels selfcheck`; it takes less than a minute.
"""

import secrets
import time
from collections.abc import Callable, Sequence

from .chains import CHAIN_CHECKS
from .rules import RULE_CHECKS
from .trees import TREE_CHECKS

__all__ = ["CHECKS", "run"]

CHECKS: dict[str, Callable] = {**CHAIN_CHECKS, **TREE_CHECKS, **RULE_CHECKS}


def run(seed: int | None = None, backends: Sequence[str] | None = None) -> bool:
    """Check the CPU's backend and that of GPU tensors; print the result of each check and a verdict.

    Args:
        seed: seed of all draws; None: a new one.
        backends: names of the backends to check; None: all that this process uses.

    Returns:
        Whether all checks passed.
    """
    import specdec_kernels as sk

    seed = secrets.randbits(40) if seed is None else seed
    began, failed = time.perf_counter(), []
    if backends is None:
        backends = [name for name in sk.backends.available() if name in ("cpu", sk.backends.chosen())]
    for backend in backends:
        device = "cpu" if backend == "cpu" else "cuda"
        name = f"{backend} ({sk.backends.cpu_isa()})" if backend == "cpu" else backend
        print(f"specdec_kernels {sk.__version__} on {name}, seed {seed}: {len(CHECKS)} checks")
        for check, find in CHECKS.items():
            print(f"{check:<49} ", end="", flush=True)
            finding = find(sk, device, seed)
            print(f"{'pass' if finding.passed else 'FAIL'}  {finding.statistic}")
            print(f"    {finding.purpose}", flush=True)
            failed += [] if finding.passed else [f"{check} on {name}"]
    seconds = time.perf_counter() - began
    if failed:
        print(f"FAILED after {seconds:.0f} s, with seed {seed}: {'; '.join(failed)}. Do not trust these ops here.")
    else:
        verdict = "these ops sample from the target's distribution (correct ops fail less than once in 100,000 runs)."
        print(f"PASSED in {seconds:.0f} s: {verdict}")
    return not failed

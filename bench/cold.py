# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.cold``: check ops whose first call in a process is captured into a CUDA graph.

A replay must return the same as a call. Each op runs in its own process: an earlier call would do the one-time setup of
a launch, and hide that it fails inside a capture.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import torch
import typer
from torch.utils._pytree import tree_leaves

import specdec_kernels as sk
from bench import rehearsal
from bench.stress import bits
from specdec_kernels import example_calls, registry

AT_ONCE, LIMIT = min(6, os.cpu_count() or 1), 60  # number of processes at once, seconds for each


def captured(op: str) -> bool:
    """Capture the op's first call, on its first example; return whether a replay equals a later call."""
    arguments = example_calls.calls(op, device="cuda")[0].arguments
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = getattr(sk, op)(**arguments)
    graph.replay()
    torch.cuda.synchronize()
    again = tree_leaves(getattr(sk, op)(**arguments))
    pairs = [(x, y) for x, y in zip(tree_leaves(result), again) if isinstance(x, torch.Tensor)]
    return bool(pairs) and all(torch.equal(bits(x), bits(y)) for x, y in pairs)


def process(op: str) -> str:
    """Check an op in a process of its own; return what is wrong, or ""."""
    command = [sys.executable, "-m", *["bench.rehearsal"] * rehearsal.active(), "bench.cold", op]
    limit = LIMIT * (5 if rehearsal.active() else 1)  # a rehearsal may run on a busy machine
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"out of its {limit} s"
    return (done.stdout + done.stderr).strip().splitlines()[-1] if done.returncode else ""


def main(op: Annotated[str, typer.Argument(help="one op, in this process; all by default")] = "") -> None:
    if op:
        if not captured(op):
            sys.exit(f"{op}: a replay answers otherwise than a call")
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = {op: fault for op, fault in zip(registry.OPS, pool.map(process, registry.OPS)) if fault}
    for op, fault in wrong.items():
        print(f"{op}: {fault}")
    print(f"{len(registry.OPS) - len(wrong)} of {len(registry.OPS)} ops can be captured cold")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)

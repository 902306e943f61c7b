# SPDX-License-Identifier: Apache-2.0
"""Our own Triton kernels, as a peer of the CUDA ones in the same process."""

from __future__ import annotations

import importlib

from torch.utils._python_dispatch import TorchDispatchMode

import specdec_kernels as sk
from bench.harness import Unavailable


class _Recorder(TorchDispatchMode):
    """Notes the arguments that reach torch.ops.specdec.<op>."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op, self.arguments = op, ()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "specdec" and function._opname == self.op:
            self.arguments = args
        return function(*args, **(kwargs or {}))


def same(op: str, ours, device: str):
    """What `ours` does, with `op` in Triton; the op's arguments are taken from one call of ours."""
    if device != "cuda":
        raise Unavailable("needs a GPU")
    if sk.backends.chosen() == "triton":
        raise Unavailable("ours is Triton here")
    if lacking := sk.backends.lacks("triton"):
        raise Unavailable(lacking)
    function = getattr(importlib.import_module(f"specdec_kernels.triton.{op}"), op)
    arguments: dict[int, tuple] = {}

    def call(x):
        if id(x) not in arguments:
            with _Recorder(op) as recorder:
                ours(x)
            arguments[id(x)] = recorder.arguments
        return function(*arguments[id(x)])

    return call

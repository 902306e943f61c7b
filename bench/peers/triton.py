# SPDX-License-Identifier: Apache-2.0
"""Our own Triton kernels, as a peer of the CUDA ones in the same process."""

from __future__ import annotations

import specdec_kernels as sk
from bench.harness import Unavailable
from specdec_kernels import example_calls


def same(op: str, ours, device: str):
    """Return a function that calls only `op` in Triton, with the arguments that `ours` passes to it.

    They are recorded once per input, from a call of `ours`.
    """
    if device != "cuda":
        raise Unavailable("needs a GPU")
    if sk.backends.chosen() == "triton":
        raise Unavailable("ours is Triton here")
    if lacking := sk.backends.lacks("triton"):
        raise Unavailable(lacking)
    from specdec_kernels.triton import op_of

    function = op_of(op)
    arguments: dict[int, tuple] = {}

    def call(x):
        if id(x) not in arguments:
            arguments[id(x)] = example_calls.op_arguments(op, ours, x)
        return function(*arguments[id(x)])

    return call

# SPDX-License-Identifier: Apache-2.0
"""Our CUDA kernels on another path, as a peer in the same process, to measure what the default path gains.

All paths give the same bits.
`SPECDEC_CUDA_PATH=streaming` uses one block per request or pair, and for small batches the launches that large batches
use. `SPECDEC_CUDA_OVERLAP=0` starts each launch only after the one before has ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench import rehearsal
from bench.harness import Unavailable

PATH, OVERLAP = "SPECDEC_CUDA_PATH", "SPECDEC_CUDA_OVERLAP"


@contextlib.contextmanager
def switch(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within a with block. The CUDA ops read it at each call."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def same(
    ours: Callable[[SimpleNamespace], object], name: str = PATH, value: str = "streaming"
) -> Callable[[SimpleNamespace], object]:
    if sk.backends.chosen() != "cuda" and not rehearsal.active():
        raise Unavailable("ours is no CUDA here")
    if torch.cuda.get_device_capability()[0] < 9:
        raise Unavailable("this GPU has no clusters, and its launches do not overlap")
    if name in os.environ:
        raise Unavailable(f"{name} is set for all")

    def call(x: SimpleNamespace) -> object:
        with switch(name, value):
            return ours(x)

    return call

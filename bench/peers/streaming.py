# SPDX-License-Identifier: Apache-2.0
"""Our own CUDA kernels with one block to a request or a pair, as a peer of the clusters of blocks in the same process:
the same bits."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench import rehearsal
from bench.harness import Unavailable

PATH = "SPECDEC_CUDA_PATH"


def same(ours: Callable[[SimpleNamespace], object]) -> Callable[[SimpleNamespace], object]:
    if not rehearsal.active():
        if sk.backends.chosen() != "cuda":
            raise Unavailable("ours is no CUDA here")
        if torch.cuda.get_device_capability()[0] < 9:
            raise Unavailable("this GPU has no clusters")
    if PATH in os.environ:
        raise Unavailable(f"{PATH} is set for all")

    def call(x: SimpleNamespace) -> object:
        os.environ[PATH] = "streaming"
        try:
            return ours(x)
        finally:
            del os.environ[PATH]

    return call

# SPDX-License-Identifier: Apache-2.0
"""SGLang's block-wise rejection (Triton): from raw logits and temperatures, without probabilities.

SPECDEC_BENCH_SGLANG names a folder with SGLang's Python files, for machines where the package is too much to install:
``unzip sglang-*.whl 'sglang/kernels/*.py' -d FOLDER``.
"""

from __future__ import annotations

import functools
import inspect
import os
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import torch

from bench.harness import Unavailable
from bench.peers import unpacked

MODULE = "sglang.kernels.ops.speculative.dspark.blockwise_rejection"


class Accepted(NamedTuple):
    drafts: torch.Tensor  # [B]: how many, without the token behind them


@functools.cache
def rejection():
    msgspec = ModuleType("msgspec")  # for a record that is not made here
    msgspec.__dict__["Struct"] = type("Struct", (), {"__init_subclass__": lambda cls, **options: None})
    found = unpacked.module(MODULE, "SPECDEC_BENCH_SGLANG", {"msgspec": msgspec})
    return found.blockwise_rejection_triton


def chain(B: int, temperature: float, device: str):
    """The step on x.target, x.draft and x.candidates [B, G+1], the last committed token's first."""
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable("needs a GPU")
    call = rejection()
    of_requests = torch.full((B,), temperature, dtype=torch.float32, device=device)
    noise = SimpleNamespace(key=1234, counter=torch.zeros(1, dtype=torch.int64, device=device))
    fixed = {"target_temperatures": of_requests, "draft_temperatures": of_requests, "noise": noise}
    wanted = {*fixed, "candidates", "target_logits", "draft_logits"}
    if missing := wanted - set(inspect.signature(call).parameters):
        raise Unavailable(f"{call.__name__} takes no {', '.join(sorted(missing))} in this version")
    rows = lambda x: {"candidates": x.candidates, "target_logits": x.target.flatten(0, 1), "draft_logits": x.draft}
    return lambda x: Accepted(call(**rows(x), **fixed)[0])

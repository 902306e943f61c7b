# SPDX-License-Identifier: Apache-2.0
"""SGLang's block-wise rejection sampling (Triton), from raw logits and temperatures.

SPECDEC_BENCH_SGLANG names a folder with SGLang's Python files, for machines where the package is too large to install:
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
    drafts: torch.Tensor  # [B]: number of accepted drafts, without the token after them


@functools.cache
def rejection():
    msgspec = ModuleType("msgspec")  # a stand-in, for a record class that is not used here
    msgspec.__dict__["Struct"] = type("Struct", (), {"__init_subclass__": lambda cls, **options: None})
    found = unpacked.module(MODULE, "SPECDEC_BENCH_SGLANG", {"msgspec": msgspec})
    return found.blockwise_rejection_triton


def chain(B: int, temperature: float, device: str):
    """Return the step on x.target, x.draft and x.candidates [B, G+1], which start with the last committed token."""
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

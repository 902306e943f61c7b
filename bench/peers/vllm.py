# SPDX-License-Identifier: Apache-2.0
"""vLLM's newest rejection sampler (Triton), installed or from a folder.

SPECDEC_BENCH_VLLM names a folder with vLLM's Python files, for machines where the package is too large to install:
``unzip vllm-*.whl 'vllm/v1/*.py' -d FOLDER``.
"""

from __future__ import annotations

import functools
import inspect
import os
from types import ModuleType

import torch

from bench.harness import Unavailable
from bench.peers import unpacked

MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


@functools.cache
def rejection_sample():
    stand_ins = {}
    if os.environ.get("SPECDEC_BENCH_VLLM"):
        import triton
        import triton.language as tl
        import triton.language.extra.libdevice as tldevice

        utils = ModuleType("vllm.triton_utils")
        utils.__dict__.update(
            HAS_TRITON=True, LOG2E=1.4426950408889634, LOGE2=0.6931471805599453, triton=triton, tl=tl, tldevice=tldevice
        )
        stand_ins[utils.__name__] = utils
    return unpacked.module(MODULE, "SPECDEC_BENCH_VLLM", stand_ins).rejection_sample


def chain(B: int, G: int, temperature: float, device: str):
    """Return the step on x.target, x.scaled_draft and x.draft_sampled.

    Like vLLM's model runner it first copies the target to float32, and divides the copy by the temperature.
    """
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unavailable("needs a GPU")
    sample = rejection_sample()
    request = torch.arange(B, dtype=torch.int32, device=device)
    position = torch.arange(G + 1, dtype=torch.int32, device=device).repeat(B)
    fixed = {
        "cu_num_logits": torch.arange(0, B * (G + 1) + 1, G + 1, dtype=torch.int32, device=device),
        "pos": position.to(torch.int64),
        "idx_mapping": request,
        "expanded_idx_mapping": request.repeat_interleave(G + 1),
        "expanded_local_pos": position,
        "temperature": torch.full((B,), temperature, dtype=torch.float32, device=device),
        "seed": torch.arange(B, dtype=torch.int64, device=device),
        "num_speculative_steps": G,
    }
    if missing := set(fixed) - set(inspect.signature(sample).parameters):
        raise Unavailable(f"rejection_sample takes no {', '.join(sorted(missing))} in this version")

    def call(x):
        scaled = torch.empty_like(x.target, dtype=torch.float32).copy_(x.target)
        if temperature not in (0.0, 1.0):
            scaled.div_(temperature)
        return sample(scaled.view(B * (G + 1), -1), x.scaled_draft, x.draft_sampled, **fixed)[1]

    return call

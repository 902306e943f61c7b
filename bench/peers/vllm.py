# SPDX-License-Identifier: Apache-2.0
"""vLLM's newest rejection sampler (Triton), installed or from a folder.

SPECDEC_BENCH_VLLM names a folder with vLLM's Python files, for machines where the package is too much to install:
``unzip vllm-*.whl 'vllm/v1/*.py' -d FOLDER``. Packages are then bare folders, their __init__.py not run, and only the
modules that the sampler imports are needed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch

from bench.harness import Unavailable

MODULE = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"


class _BarePackages:
    """Finds vllm's packages as folders; their modules are then found the usual way."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        location = os.path.join(self.folder, *name.split("."))
        if name.split(".")[0] != "vllm" or not os.path.isdir(location):
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [location]
        return spec


def _from_folder(folder: str) -> None:
    import triton
    import triton.language as tl
    import triton.language.extra.libdevice as tldevice

    utils = ModuleType("vllm.triton_utils")
    utils.__dict__.update(
        HAS_TRITON=True, LOG2E=1.4426950408889634, LOGE2=0.6931471805599453, triton=triton, tl=tl, tldevice=tldevice
    )
    sys.modules["vllm.triton_utils"] = utils
    sys.meta_path.insert(0, _BarePackages(folder))


@functools.cache
def rejection_sample():
    if folder := os.environ.get("SPECDEC_BENCH_VLLM"):
        _from_folder(folder)
    try:
        return importlib.import_module(MODULE).rejection_sample
    except Exception as error:
        hint = f"in SPECDEC_BENCH_VLLM={folder}" if folder else "not installed, and SPECDEC_BENCH_VLLM names no folder"
        raise Unavailable(f"{hint} ({type(error).__name__}: {error})".splitlines()[0]) from error


def chain(B: int, G: int, temperature: float, device: str):
    """The step on x.target, x.tokens, x.draft. Like vLLM's model runner it first copies the target to float32, and
    scales that copy."""
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

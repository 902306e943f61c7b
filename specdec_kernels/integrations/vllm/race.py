# SPDX-License-Identifier: Apache-2.0
"""SPECDEC_VLLM_METHOD=race for V1: a seed gives one text, with speculation or without.

Drafts are drawn by `sample(race=True)` and verified by `verify_chain(method="race")`. Both use one seed for a request's
whole life, and absolute positions. An engine without speculation draws in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specdec_kernels.integrations.vllm import verify
from specdec_kernels.integrations.vllm.method import races
from specdec_kernels.integrations.vllm.upload import on
from specdec_kernels.seeds import signed


@dataclass(frozen=True)
class Place:
    """The random numbers of the next token of each request."""

    seed: torch.Tensor  # [B] int64
    position: torch.Tensor  # [B] int64, the number of tokens before it


def made(self: Any) -> None:
    """Make a rejection sampler verify by the race.

    Raises:
        ValueError: the engine asks for another method.
    """
    if self.specdec_method != "standard":
        wanted = "SPECDEC_VLLM_METHOD=race: rejection_sample_method must be standard"
        raise ValueError(f"{wanted}, got {self.specdec_method}")
    self.specdec_method = "race"


def made_scheduler(upstream: Callable, self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement of ``Scheduler.__init__``, which every engine calls before its first step.

    Raises:
        ValueError: a race is asked for, and the engine's runner is V2's.
    """
    if races() and vllm_config.use_v2_model_runner:
        wanted = "SPECDEC_VLLM_METHOD=race: the model runner must be V1's (VLLM_USE_V2_MODEL_RUNNER=0)"
        raise ValueError(f"{wanted}, got V2's")
    upstream(self, vllm_config, *args, **kwargs)


def place(runner: Any, last: torch.Tensor) -> Place:
    """Return the place of the first token that a step emits, after the token at position `last` [B].

    The seed of a request without one is made from its id and the engine's seed, so all ranks have the same. vLLM adds
    random letters to ids, so such requests draw different numbers even if their callers' ids are equal.
    """
    generators, seeds = runner.input_batch.generators, []
    for b, request in enumerate(runner.input_batch.req_ids):
        if b in generators:
            seeds.append(signed(generators[b].initial_seed()))
        else:
            named = f"{runner.model_config.seed} {request}".encode()
            seeds.append(int.from_bytes(hashlib.sha256(named).digest()[:8], "little", signed=True))
    return Place(on(seeds, last.device), last + 1)


def after(at: Place, tokens: torch.Tensor) -> Place:
    """Return the place of the first draft: it follows the emitted tokens [B, K+1], which are padded with -1."""
    return Place(at.seed, at.position + (tokens >= 0).sum(1))


class Plain:
    """Takes the place of a RejectionSampler in an engine without speculation."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.is_processed_logprobs_mode = sampler.logprobs_mode.startswith("processed")
        self.is_logits_logprobs_mode = sampler.logprobs_mode.endswith("logits")
        self.specdec_method, self.specdec_step = "race", None

    def __call__(self, metadata: Any, draft_probs: None, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        return verify.forward(_never, self, metadata, draft_probs, logits, sampling_metadata)


def _never(self: Any, *given: Any) -> Any:
    raise RuntimeError("specdec_kernels: a step of an engine without speculation was left to vLLM's rejection sampler")

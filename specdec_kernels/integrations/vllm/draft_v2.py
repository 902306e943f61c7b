# SPDX-License-Identifier: Apache-2.0
"""Drafting in vLLM's V2 model runner by ``sample``, with each request's temperature, top-k, top-p, min-p and seed.

vLLM's own drafter uses only the temperature. With the target's filters, the draft model does not draw tokens that the
target's filters remove. A drafter may be replayed from a CUDA graph, so the filters are first copied to fixed tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from specdec_kernels.integrations.vllm.verify import is_on
from specdec_kernels.ops.sample import sample
from specdec_kernels.rows import Rows

# Base classes of the drafters that draw token by token, all by sample_draft (EAGLE, MTP, Gemma 4)
DRAFTERS = {"TargetDependentARSpeculator", "MultiModuleMTPSpeculator", "StandaloneARSpeculator"}
NAMES = ("top_k", "top_p", "min_p")

_states: Any = None  # the SamplingStates of the process's newest sampler, if its verification can use filtered drafts


class Filters(NamedTuple):
    """The filters that a drafter draws with, by request slot [S], in fixed memory for CUDA graphs."""

    states: Any  # vLLM's SamplingStates, which they are copied from
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    zeros: torch.Tensor  # temperatures, for vLLM's kernel

    def of(self, slot: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the filters of these slots as arguments of Rows."""
        return {name: getattr(self, name)[slot] for name in NAMES}


def made(sampler: Any) -> None:
    """Keep the sampling states of V2's new RejectionSampler, unless vLLM's kernels will verify (fly, watermarks)."""
    global _states
    theirs = getattr(sampler, "watermark_key", None) is not None or is_on(getattr(sampler, "fly_window_size", None))
    _states = None if theirs else getattr(getattr(sampler, "sampler", None), "sampling_states", None)


def copy_request_inputs(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> None:
    """Replacement of ``DraftModelSpeculator._copy_request_inputs``: copy the filters too."""
    upstream(self, *args, **kwargs)
    if not hasattr(self, "specdec_filters"):
        self.specdec_filters = _filters(self)
    if self.specdec_filters is not None:
        for name in NAMES:
            getattr(self.specdec_filters, name).copy_(getattr(self.specdec_filters.states, name).gpu)


def _filters(speculator: Any) -> Filters | None:
    fits = any(kind.__name__ in DRAFTERS for kind in type(speculator).__mro__)
    if _states is None or not fits or speculator.draft_logits is None or speculator.draft_watermarker is not None:
        return None
    return Filters(_states, *(torch.zeros_like(getattr(_states, name).gpu) for name in (*NAMES, "temperature")))


def sample_draft(
    upstream: Callable,
    self: Any,
    hidden_states: torch.Tensor,
    sample_src_positions: torch.Tensor,
    idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    draft_step: torch.Tensor,
    draft_logits: torch.Tensor | None,
    spec_step_idx: int = 0,
    **more: Any,
) -> torch.Tensor:
    """Replacement of ``DraftModelSpeculator.sample_draft``: return the drafts [N] of slots [N].

    Each row of logits is kept in draft_logits [S, K, V] at its slot and draft_step (one number, or [N]). A draft's
    random number depends on its position and on its index in the step, so a later step draws with other numbers.
    Padding has slot -1: its row is not kept, and its draft, drawn with slot 0's filters, is not used.
    """
    filters = getattr(self, "specdec_filters", None)
    if filters is None or draft_logits is None:
        self.specdec_filters = None  # for good: a CUDA graph of vLLM's own sampling may be captured now
        by = (hidden_states, sample_src_positions, idx_mapping, temperature, seeds, draft_step, draft_logits)
        return upstream(self, *by, spec_step_idx, **more)
    logits = self.compute_draft_logits(hidden_states, spec_step_idx)
    # vLLM's kernel stores the rows, except those of padding. With temperatures of 0 it uses no random numbers.
    sys.modules[upstream.__module__].gumbel_sample(
        logits, idx_mapping, filters.zeros, seeds, sample_src_positions,
        apply_temperature=False, is_drafting=True, logits_cache=draft_logits, logits_cache_col=draft_step,
    )  # fmt: skip
    slot = idx_mapping.clamp(min=0).to(torch.int64)
    step = draft_step.to(torch.int64).expand(slot.size(0)).contiguous()
    drawn = sample(
        Rows(logits, temperature=temperature[slot], **filters.of(slot)),
        seed=seeds[slot],
        offset=sample_src_positions.to(torch.int64),
        slot=step,
    )
    self._maybe_predict_acceptance(logits, idx_mapping, draft_step)
    return drawn.tokens[:, 0]

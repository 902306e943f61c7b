# SPDX-License-Identifier: Apache-2.0
"""vLLM's draft model draws by ``sample``: with the request's temperature, top-k and top-p, its seed and its position.

vLLM's own drafter uses the temperature alone. Drawn by the target's filters, a draft that the target likes is not
rejected for what the filters cut away, and a request with a seed repeats itself, drafts and all. What goes to
verification is the draft's logits and the parameters they were drawn by, so no row of probabilities is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from specdec_kernels.integrations.vllm import cut, verify
from specdec_kernels.integrations.vllm.keys import keys
from specdec_kernels.ops.sample import sample
from specdec_kernels.rows import Rows


@dataclass
class Drafting:
    """A drafter's place in its step."""

    positions: torch.Tensor | None = None  # [B] int64, of the last token that each request has kept
    drawn: int = 0  # how many tokens of each request
    logits: bool = False  # whether what it hands over are rows of logits that `sample` drew from


def propose(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``SpecDecodeBaseProposer.propose``: begins a step. Block verification needs the draft's law as any other does."""
    config = self.speculative_config
    if config.rejection_sample_method == "block" and config.draft_sample_method == "probabilistic":
        self._enable_probabilistic_draft_probs = True
    self.specdec = Drafting()
    return upstream(self, *args, **kwargs)


def set_inputs_first_pass(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``SpecDecodeBaseProposer.set_inputs_first_pass``: behind it the positions of the batch are known."""
    out = upstream(self, *args, **kwargs)
    state, rows = getattr(self, "specdec", None), out[1]
    if state is not None:
        positions = self.mrope_positions[0] if self.uses_mrope else self.positions
        state.positions = positions[rows].to(torch.int64)
    return out


def sample_from_logits(
    upstream: Callable, self: Any, logits: torch.Tensor, sampling_metadata: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``SpecDecodeBaseProposer._sample_from_logits``: tokens [N] and the logits they were drawn from [N, V].

    N is a row a request, or with parallel drafting a request's rows behind one another.
    """
    if not self._enable_probabilistic_draft_probs or sampling_metadata.all_greedy:
        return upstream(self, logits, sampling_metadata)
    state = getattr(self, "specdec", None) or Drafting()
    B = sampling_metadata.temperature.size(0)
    each = logits.size(0) // B  # rows a request
    positions = state.positions if state.positions is not None and state.positions.size(0) == B else None
    seed, offset = keys(sampling_metadata.generators, positions, B, logits.device)
    parameters = {name: x for name, x in verify.sampling(sampling_metadata).items() if x is not None}
    randomness = {"seed": seed, "offset": offset}
    slot: int | torch.Tensor = state.drawn
    if each > 1:
        parameters, randomness = (
            {name: x.repeat_interleave(each) for name, x in given.items()} for given in (parameters, randomness)
        )
        slot = torch.arange(each, device=logits.device).repeat(B) + state.drawn
    drawn = sample(Rows(logits, **parameters), slot=slot, **randomness)
    state.drawn += each
    state.logits = True
    return drawn.tokens.view(-1), logits


def runner_sample(upstream: Callable, self: Any, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
    """``GPUModelRunner._sample``: tells the rejection sampler what the runner knows of the step.

    A step in which no draft is scheduled goes there too if a request has a seed, since it then draws by its position as
    it does beside requests with drafts, and if a draft was cut at its first token (``cut``).
    """
    before, self.specdec_sampled = getattr(self, "specdec_sampled", frozenset()), cut.sampled(self)
    sampler, sampling = getattr(self, "rejection_sampler", None), self.input_batch.sampling_metadata
    if sampler is None or logits is None:
        return upstream(self, logits, spec_decode_metadata)
    metadata = spec_decode_metadata
    num_draft = [0] * logits.size(0) if metadata is None else metadata.num_draft_tokens
    place, was_cut = cut.places(self, num_draft, before)
    was_cut &= verify.is_exact(sampler, sampling)
    if metadata is None:
        seeded = bool(sampling.generators) and not sampling.logprob_token_ids
        if not seeded and not was_cut.any():
            return upstream(self, logits, None)
        metadata = no_drafts(self.query_start_loc.gpu, logits.size(0))
        if not was_cut.any() and verify.why_not(sampler, metadata, logits, sampling) is not None:
            return upstream(self, logits, None)
    drafting = getattr(getattr(self, "drafter", None), "specdec", None)
    first = pad(metadata.cu_num_sampled_tokens[:-1], (1, 0))
    offset = self.positions[metadata.logits_indices[first]].to(torch.int64)
    kind = "logits" if drafting is not None and drafting.logits else "probs"
    drafts = cut.drafts(self, metadata, place, was_cut)
    sampler.specdec_step = verify.Step(offset, kind, metadata, drafts, was_cut)
    try:
        return upstream(self, logits, drafts.metadata)
    finally:
        sampler.specdec_step = None


def draft_rows(upstream: Callable, self: Any, spec_decode_metadata: Any) -> torch.Tensor | None:
    """``GPUModelRunner._get_spec_decode_draft_probs``: the drafter's rows [S, K, V] where it wrote them.

    They are found by number; nothing is copied, and nothing is dropped for a request that was not drafted for.
    """
    step = getattr(self.rejection_sampler, "specdec_step", None)
    return upstream(self, spec_decode_metadata) if step is None else self._draft_probs


def no_drafts(query_start_loc: torch.Tensor, B: int) -> Any:
    """SpecDecodeMetadata of B requests without a draft, whose rows are those of their last scheduled tokens."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    ends = query_start_loc[1 : B + 1]
    rows = torch.arange(B, dtype=torch.int32, device=ends.device)
    return SpecDecodeMetadata(
        draft_token_ids=rows[:0],
        num_draft_tokens=[0] * B,
        cu_num_draft_tokens=torch.zeros_like(rows),
        cu_num_sampled_tokens=rows + 1,
        target_logits_indices=rows[:0],
        bonus_logits_indices=rows,
        logits_indices=ends - 1,
    )

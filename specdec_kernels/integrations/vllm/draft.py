# SPDX-License-Identifier: Apache-2.0
"""Drafting in vLLM by ``sample``, with each request's temperature, top-k, top-p, min-p, seed and position.

vLLM's own drafter uses only the temperature. With the target's filters, the draft model does not draw tokens that the
target's filters remove, and a request with a seed is reproducible, including its drafts. Verification gets the draft's
logits and the sampling parameters, so no row of probabilities is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from specdec_kernels.integrations.vllm import cut, fallback, grammar, histories, race, verify
from specdec_kernels.integrations.vllm.keys import keys
from specdec_kernels.integrations.vllm.method import races
from specdec_kernels.ops.sample import sample
from specdec_kernels.rows import Rows


@dataclass
class Drafting:
    """A drafter's state during a step."""

    positions: torch.Tensor | None = None  # [B] int64, the position of the last token that each request has kept
    drawn: int = 0  # tokens drawn per request
    race: race.Place | None = None  # the random numbers of the first draft, if drafts are drawn by the race
    logits: bool = False  # True: the draft's rows are logits, from which `sample` drew


def propose(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Replacement of ``SpecDecodeBaseProposer.propose``: begin a step.

    Block verification needs the draft's distribution too, so the drafter is made to keep it.
    """
    config = self.speculative_config
    if config.rejection_sample_method == "block" and config.draft_sample_method == "probabilistic":
        self._enable_probabilistic_draft_probs = True
    self.specdec = Drafting(race=getattr(self, "specdec_race", None))
    return upstream(self, *args, **kwargs)


def set_inputs_first_pass(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``SpecDecodeBaseProposer.set_inputs_first_pass``: also store the positions."""
    out = upstream(self, *args, **kwargs)
    state, rows = getattr(self, "specdec", None), out[1]
    if state is not None:
        positions = self.mrope_positions[0] if self.uses_mrope else self.positions
        state.positions = positions[rows].to(torch.int64)
    return out


def sample_from_logits(
    upstream: Callable, self: Any, logits: torch.Tensor, sampling_metadata: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Replacement of ``SpecDecodeBaseProposer._sample_from_logits``: return tokens [N] and their logits [N, V].

    There is one row per request, or with parallel drafting several consecutive rows per request.
    """
    if not self._enable_probabilistic_draft_probs or sampling_metadata.all_greedy:
        return upstream(self, logits, sampling_metadata)
    state = getattr(self, "specdec", None) or Drafting()
    B = sampling_metadata.temperature.size(0)
    each = logits.size(0) // B  # rows per request
    positions = state.positions if state.positions is not None and state.positions.size(0) == B else None
    if state.race is not None:
        seed, offset = state.race.seed, state.race.position
    else:
        seed, offset = keys(sampling_metadata.generators, positions, B, logits.device)
    parameters = {name: x for name, x in verify.sampling(sampling_metadata).items() if x is not None}
    randomness = {"seed": seed, "offset": offset}
    slot: int | torch.Tensor = state.drawn
    if each > 1:
        parameters, randomness = (
            {name: x.repeat_interleave(each) for name, x in given.items()} for given in (parameters, randomness)
        )
        slot = torch.arange(each, device=logits.device).repeat(B) + state.drawn
    seed, offset = randomness["seed"], randomness["offset"]
    if state.race is not None:
        drawn = sample(Rows(logits, **parameters), seed=seed, offset=offset + slot, race=True)
    else:
        drawn = sample(Rows(logits, **parameters), seed=seed, offset=offset, slot=slot)
    state.drawn += each
    state.logits = True
    return drawn.tokens.view(-1), logits


def runner_sample(upstream: Callable, self: Any, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
    """Replacement of ``GPUModelRunner._sample``: pass the step's state to the rejection sampler.

    The rejection sampler also gets steps without scheduled drafts. Their requests draw by their positions, as in other
    steps, and drafts may have been cut at their first token (see the module ``cut``).
    """
    before, self.specdec_sampled = getattr(self, "specdec_sampled", frozenset()), cut.sampled(self)
    sampler, sampling = getattr(self, "rejection_sampler", None), self.input_batch.sampling_metadata
    grammars = grammar.taken(self.input_batch)
    drafter = getattr(self, "drafter", None)
    if drafter is not None:
        drafter.specdec_race = None  # it belongs to an earlier batch
    if sampler is None and logits is not None and races():
        sampler = self.rejection_sampler = race.Plain(self.sampler)
    if sampler is None or logits is None:
        if grammars is not None:
            grammars.apply()
        return upstream(self, logits, spec_decode_metadata)
    metadata = spec_decode_metadata
    num_draft = [0] * logits.size(0) if metadata is None else metadata.num_draft_tokens
    place, was_cut = cut.places(self, num_draft, before)
    was_cut &= verify.is_exact(sampler, sampling)
    if metadata is None:
        metadata = no_drafts(self.query_start_loc.gpu, logits.size(0))
        reason = verify.why_not(sampler, metadata, logits, sampling)
        if sampling.logprob_token_ids:
            reason = "logprob_token_ids"
        if reason is not None and not was_cut.any():
            fallback.note(reason)
            if grammars is not None:
                grammars.apply()
            return upstream(self, logits, None)
    drafting = getattr(drafter, "specdec", None)
    first = pad(metadata.cu_num_sampled_tokens[:-1], (1, 0))
    offset = self.positions[metadata.logits_indices[first]].to(torch.int64)
    kind = "logits" if drafting is not None and drafting.logits else "probs"
    drafts = cut.drafts(self, metadata, place, was_cut)
    at = race.place(self, offset) if sampler.specdec_method == "race" else None
    key = (offset, None) if at is None else (at.position, at.seed)
    texts = histories.of_runner(self)
    sampler.specdec_step = verify.Step(key[0], kind, metadata, drafts, was_cut, grammars, key[1], texts)
    try:
        out = upstream(self, logits, drafts.metadata)
    finally:
        sampler.specdec_step = None
    if at is not None and drafter is not None:
        drafter.specdec_race = race.after(at, out.sampled_token_ids)
    return out


def draft_rows(upstream: Callable, self: Any, spec_decode_metadata: Any) -> torch.Tensor | None:
    """Replacement of ``GPUModelRunner._get_spec_decode_draft_probs``: return the drafter's rows [S, K, V] in place.

    Rows are looked up by index, so nothing is copied, and requests without drafts need no special case.
    """
    step = getattr(self.rejection_sampler, "specdec_step", None)
    return upstream(self, spec_decode_metadata) if step is None else self._draft_probs


def no_drafts(query_start_loc: torch.Tensor, B: int) -> Any:
    """Return SpecDecodeMetadata of B requests without drafts. Their rows are those of their last scheduled tokens."""
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

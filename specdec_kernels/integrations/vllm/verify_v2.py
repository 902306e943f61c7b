# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of vLLM's V2 model runner by verify_chain, from the rows as the model wrote them.

Draft rows are stored by request slot, [slots, K, V], before temperature. Parameters of requests are stored by slot too.
All are looked up by index, in fixed shapes, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch

from specdec_kernels.integrations.vllm import fallback, metrics, views_v2
from specdec_kernels.integrations.vllm.verify import is_on
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows

# the arguments of rejection_sample after num_speculative_steps, in order
OURS = ("synthetic_conditional_rates", "use_fp64", "use_block_verification")
THEIRS = ("contexts", "watermarking", "watermarking_skip_mask", "watermark_key", "fly_window_size")
MORE = (*OURS, *THEIRS, "fly_entropy_threshold", "fly_entropy_top_k")
PROCESSORS = ["LogitBiasState", "PenaltiesState", "BadWordsState"]  # vLLM's own, in its order

_requests: ContextVar[Any] = ContextVar("requests", default=None)  # vLLM's RequestState while its drafts are verified
_grammars: ContextVar[Any] = ContextVar("grammars", default=None)  # the step's requests with a grammar; None: not known
_filters: ContextVar[Any] = ContextVar("filters", default=None)  # draft_v2.Filters that the drafts were drawn with
_verified: ContextVar[Any] = ContextVar("verified", default=None)  # the step just verified, for its sampling masks


class Chains(NamedTuple):
    """The drafts of a step, and the places of their rows."""

    slot: torch.Tensor  # [B] int64
    offset: torch.Tensor  # [B] int64, the position of the last committed token
    row: torch.Tensor  # [B, K+1], each position's row of logits
    drafts: torch.Tensor  # [B, K], -1 after the last
    kept: torch.Tensor | None  # [B, 1], how many drafts come before a cut one; None: cut drafts are not restored

    def draft_row(self, draft_logits: torch.Tensor) -> torch.Tensor:
        """Return the index of each draft's row [B, K] in rows by slot [S, columns, V]."""
        column = torch.arange(self.drafts.size(1), device=self.slot.device)
        return self.slot[:, None] * draft_logits.size(1) + column


def filters_of(slot: torch.Tensor) -> dict[str, Any]:
    """Return the filters besides the temperature that these slots' drafts were drawn with."""
    filters = _filters.get()
    return {} if filters is None else filters.of(slot)


def verify(
    upstream: Callable,
    self: Any,
    logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    pos: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    idx_mapping_np: np.ndarray,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    seq_lens_upper_bound_np: np.ndarray,
    verify_draft_sampled: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Replacement of ``RejectionSampler._verify``: return the rows, tokens [B, K+1] and their number [B].

    The rows [R, V] are the given logits. In steps that fall back, they are a float32 copy that vLLM has filtered.
    """
    _verified.set(None)
    sampler, K = self.sampler, self.num_speculative_steps
    own = self.watermark_key is not None or is_on(getattr(self, "fly_window_size", 0))  # rejection_sample notes this
    reason = None if own else why_not(sampler, idx_mapping_np, seq_lens_upper_bound_np)
    if own or reason is not None:
        if reason is not None:
            fallback.note(reason)
        token = _requests.set(sampler.req_states)
        try:
            places = (idx_mapping, idx_mapping_np, expanded_idx_mapping, expanded_local_pos)
            given = (logits, draft_logits, draft_sampled, pos, cu_num_logits, *places)
            return upstream(self, *given, seq_lens_upper_bound_np, verify_draft_sampled)
        finally:
            _requests.reset(token)
    rates, states = self.synthetic_conditional_rates, sampler.sampling_states
    cut = draft_logits is not None and rates is None
    chains = placed(verify_draft_sampled, cu_num_logits, pos, idx_mapping, K, sampler.req_states if cut else None)
    step = views_v2.step(sampler, logits, idx_mapping_np, idx_mapping, cu_num_logits, draft_sampled, pos, K)
    target = views_v2.chains(step, chains.row)
    draft = None
    if draft_logits is not None:
        asked, drawn_with = views_v2.sampling(states, idx_mapping_np, chains.slot), filters_of(chains.slot)
        used = {name: x for name, x in drawn_with.items() if name in asked}
        draft = Rows(draft_logits, temperature=asked["temperature"], row=chains.draft_row(draft_logits), **used)
    tokens = verified(chains, target, draft, states.seeds.gpu, rates, self.use_block_verification)
    metrics.served()
    if sampler.return_sampling_mask:
        _verified.set(step)
    return logits, *tokens


def why_not(sampler: Any, used: np.ndarray, most_tokens: np.ndarray) -> str | None:
    """Return why verify_chain cannot apply what these slots ask for, so that vLLM must; None if it can."""
    if type(sampler).__name__ != "Sampler":
        return f"a sampler of its own, {type(sampler).__name__}"
    names = [type(x).__name__ for x in sampler.logits_processors]
    if names[:3] != PROCESSORS:
        return f"logits processors that are not known, {', '.join(names)}"
    if names[3:] and sampler.needs_logits_processing[used].any():
        return f"a custom logits processor, {', '.join(names[3:])}"
    if sampler.logprobs_mode.startswith("processed_") and (sampler.sampling_states.num_logprobs[used] != -1).any():
        return "processed logprobs"
    long = np.minimum(most_tokens, sampler.sampling_states.vocab_size) > views_v2.MOST_USED
    if (sampler.penalties_state.use_penalty[used] & long).any():
        return f"penalties on a request of more than {views_v2.MOST_USED:,} tokens"
    thinking, slots, grammars = sampler.thinking_budget_state, sampler.req_states.req_id_to_index, _grammars.get()
    if not thinking.enabled or not thinking.use_thinking_budget[used].any():
        return None
    if grammars is None:
        return "a thinking budget, with a runner that names no grammars"
    under_grammar = np.isin(used, [slots[name] for name in grammars if name in slots])
    if (thinking.use_thinking_budget[used] & under_grammar).any():
        return "a thinking budget under a grammar, which may forbid its end"
    return None


def sampling_mask_rows(logits: torch.Tensor) -> Rows | None:
    """Return the rows [R, V] of the step that was just verified with their filters, if `logits` are its rows."""
    step = _verified.get()
    _verified.set(None)
    return views_v2.flat(step) if step is not None and step.logits is logits else None


def runner_sample(upstream: Callable, self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
    """Replacement of V2's ``GPUModelRunner.sample``: also verify steps in which a grammar cut every draft at its start.

    vLLM would send such a step, which has no drafts, to its sampler, and that would draw from p.
    """
    drafts = getattr(self.speculator, "draft_logits", None) is not None and self.rejection_sampler is not None
    if drafts and grammar_output is not None and input_batch.num_draft_tokens == 0:
        input_batch = copy(input_batch)
        input_batch.num_draft_tokens = len(input_batch.req_ids)  # each request has a draft, although none is scheduled
    grammars = _grammars.set(() if grammar_output is None else grammar_output.structured_output_request_ids)
    filters = _filters.set(getattr(self.speculator, "specdec_filters", None))
    try:
        return upstream(self, hidden_states, input_batch, grammar_output)
    finally:
        _filters.reset(filters)
        _grammars.reset(grammars)


def placed(
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    K: int,
    requests: Any,
) -> Chains:
    """Return the drafts of these requests. `requests`: vLLM's RequestState, to restore cut drafts; None: do not."""
    first, end = cu_num_logits[:-1].to(torch.int64), cu_num_logits[1:, None]
    row = first[:, None] + torch.arange(K + 1, device=first.device)
    after = row[:, 1:]  # a draft's id is stored at the index of the row after it
    drafts = torch.where(after < end, draft_sampled[after.clamp(max=draft_sampled.size(0) - 1)], -1)
    slot, offset = idx_mapping.to(torch.int64), pos[first].to(torch.int64)
    if requests is None:
        return Chains(slot, offset, row, drafts, None)
    drafts, kept = with_cut(drafts, requests, slot, offset)
    return Chains(
        slot, offset, row.minimum(end - 1), drafts, kept
    )  # a token after a cut draft has no row, and is dropped


def verified(
    chains: Chains, target: Rows, draft: Rows | None, seed: torch.Tensor, rates: torch.Tensor | None, block: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens [B, K+1] of one verify_chain call, and their number [B]."""
    slot, K = chains.slot, chains.drafts.size(1)
    column = torch.arange(K + 1, device=slot.device)
    rule: dict[str, Any] = {} if rates is None else {"rule": "synthetic", "alpha": rates[None, :K]}
    out = verify_chain(
        target,
        chains.drafts,
        draft,
        method="block" if block else "token",
        seed=seed[slot],
        offset=chains.offset,
        **rule,
    )
    metrics.saw(out.status)
    if chains.kept is None:
        return out.tokens, out.num_accepted + 1
    number = out.num_accepted.minimum(chains.kept[:, 0]).to(torch.int32) + 1
    return out.tokens.where(column <= chains.kept, -1), number


def with_cut(
    drafts: torch.Tensor, requests: Any, slot: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return drafts [B, K] with the first cut id of each request, and the number of ids before it [B, 1] (see cut.py).

    A request that has sampled nothing since its prompt was read has no draft; its slot may hold an earlier request's.
    """
    kept = (drafts >= 0).to(torch.int64).cumprod(1).sum(1, keepdim=True)
    has_more = (kept < drafts.size(1)) & (position >= requests.prefill_len.gpu[slot])[:, None]
    place = kept.clamp(max=drafts.size(1) - 1)
    made = requests.draft_tokens[slot].gather(1, place).to(drafts.dtype)
    return drafts.scatter(1, place, torch.where(has_more, made, drafts.gather(1, place))), kept


def rejection_sample(
    upstream: Callable,
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    num_speculative_steps: int,
    *more: Any,
    **named: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replacement of ``rejection_sample``: return tokens [B, K+1] and their number [B].

    Target rows [R, V] have been scaled and filtered by vLLM. Calls with keyed noise (watermarks), deferred rejections
    (fly) or unknown arguments fall back to vLLM.
    """
    asked = dict(zip(MORE, more)) | named
    theirs = [name for name, x in asked.items() if name not in MORE or (name in THEIRS and is_on(x))]
    if theirs:
        fallback.note(f"rejection_sample's {', '.join(theirs)}")
        rows = (target_logits, draft_logits, draft_sampled, cu_num_logits, pos)
        places = (idx_mapping, expanded_idx_mapping, expanded_local_pos)
        return upstream(*rows, *places, temperature, seed, num_speculative_steps, *more, **named)
    rates, requests = asked.get("synthetic_conditional_rates"), _requests.get()
    cut = draft_logits is not None and rates is None
    K = num_speculative_steps
    chains = placed(draft_sampled, cu_num_logits, pos, idx_mapping, K, requests if cut else None)
    target = Rows(target_logits, row=chains.row, temperature=(temperature[chains.slot] != 0).to(torch.float32))
    draft = None
    if draft_logits is not None:
        drawn_with = filters_of(chains.slot) | {"temperature": temperature[chains.slot]}
        draft = Rows(draft_logits, row=chains.draft_row(draft_logits), **drawn_with)
    return verified(chains, target, draft, seed, rates, bool(asked.get("use_block_verification")))

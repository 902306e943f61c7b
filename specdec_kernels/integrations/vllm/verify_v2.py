# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of vLLM's V2 model runner by verify_chain.

Draft rows are stored by request slot [slots, K, V], without temperature; temperatures and seeds are stored by slot too.
All are looked up by index, in fixed shapes, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from typing import Any

import torch

from specdec_kernels.integrations.vllm import fallback, metrics
from specdec_kernels.integrations.vllm.verify import is_on
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows

# the arguments of rejection_sample after num_speculative_steps, in order
OURS = ("synthetic_conditional_rates", "use_fp64", "use_block_verification")
THEIRS = ("contexts", "watermarking", "watermarking_skip_mask", "watermark_key", "fly_window_size")
MORE = (*OURS, *THEIRS, "fly_entropy_threshold", "fly_entropy_top_k")

_requests: ContextVar[Any] = ContextVar("requests", default=None)  # vLLM's RequestState while its drafts are verified


def verify(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replacement of ``RejectionSampler._verify``: during it `_requests` gives access to all drafts, cut ones too."""
    token = _requests.set(self.sampler.req_states)
    try:
        return upstream(self, *args, **kwargs)
    finally:
        _requests.reset(token)


def runner_sample(upstream: Callable, self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
    """Replacement of V2's ``GPUModelRunner.sample``: verify steps whose drafts a grammar cut at their first tokens too.

    vLLM sends a step without drafts to its sampler, which would draw from p.
    """
    drafts = getattr(self.speculator, "draft_logits", None) is not None and self.rejection_sampler is not None
    if drafts and grammar_output is not None and input_batch.num_draft_tokens == 0:
        input_batch = copy(input_batch)
        input_batch.num_draft_tokens = len(input_batch.req_ids)  # each request has one, though not scheduled
    return upstream(self, hidden_states, input_batch, grammar_output)


def with_cut(
    drafts: torch.Tensor, requests: Any, slot: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return drafts [B, K] with the first cut id of each request, and the number of ids before it [B, 1]; see ``cut``.

    A request that has sampled nothing since its prompt was read has no draft; its slot may hold another request's.
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
    K = num_speculative_steps
    first, end = cu_num_logits[:-1].to(torch.int64), cu_num_logits[1:, None]
    column = torch.arange(K + 1, device=first.device)
    row = first[:, None] + column
    after = row[:, 1:]  # a draft's id is stored at the index of the row after it
    drafts = torch.where(after < end, draft_sampled[after.clamp(max=draft_sampled.size(0) - 1)], -1)
    slot, offset = idx_mapping.to(torch.int64), pos[first].to(torch.int64)
    of_request = temperature[slot]
    rates, requests, kept = asked.get("synthetic_conditional_rates"), _requests.get(), None
    if draft_logits is not None and rates is None and requests is not None:
        drafts, kept = with_cut(drafts, requests, slot, offset)
        row = row.minimum(end - 1)  # a token after a cut draft has no row of its own, and is dropped
    draft, rule = None, {} if rates is None else {"rule": "synthetic", "alpha": rates[None, :K]}
    if draft_logits is not None:
        draft_row = slot[:, None] * draft_logits.size(1) + torch.arange(K, device=slot.device)
        draft = Rows(draft_logits, temperature=of_request, row=draft_row)
    out = verify_chain(
        Rows(target_logits, row=row, temperature=(of_request != 0).to(torch.float32)),
        drafts,
        draft,
        method="block" if asked.get("use_block_verification") else "token",
        seed=seed[slot],
        offset=offset,
        **rule,
    )
    metrics.served(out.status)
    if kept is None:
        return out.tokens, out.num_accepted + 1
    return out.tokens.where(column <= kept, -1), out.num_accepted.minimum(kept[:, 0]).to(torch.int32) + 1

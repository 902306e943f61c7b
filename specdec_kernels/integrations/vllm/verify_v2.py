# SPDX-License-Identifier: Apache-2.0
"""The rejection sampling of vLLM's V2 model runner on verify_chain.

Its draft rows stay by request slot [slots, K, V], where the drafter wrote them before any temperature; the request's
temperature and seed lie by slot too. Everything is found by number, in fixed shapes: nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from typing import Any

import torch

from specdec_kernels.integrations.vllm import own_way
from specdec_kernels.integrations.vllm.verify import is_on
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows

# what rejection_sample takes behind num_speculative_steps, in its order
OURS = ("synthetic_conditional_rates", "use_fp64", "use_block_verification")
THEIRS = ("contexts", "watermarking", "watermarking_skip_mask", "watermark_key", "fly_window_size")
MORE = (*OURS, *THEIRS, "fly_entropy_threshold", "fly_entropy_top_k")

_requests: ContextVar[Any] = ContextVar("requests", default=None)  # vLLM's RequestState while its drafts are verified


def verify(upstream: Callable, self: Any, *args: Any, **kwargs: Any) -> Any:
    """``RejectionSampler._verify``: meanwhile the drafts of its requests are at hand, those that were cut too."""
    token = _requests.set(self.sampler.req_states)
    try:
        return upstream(self, *args, **kwargs)
    finally:
        _requests.reset(token)


def runner_sample(upstream: Callable, self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
    """V2's ``GPUModelRunner.sample``: a step whose drafts a grammar has cut at their first tokens is verified too.

    vLLM sends a step without drafts to its sampler, which would draw from p.
    """
    drafts = getattr(self.speculator, "draft_logits", None) is not None and self.rejection_sampler is not None
    if drafts and grammar_output is not None and input_batch.num_draft_tokens == 0:
        input_batch = copy(input_batch)
        input_batch.num_draft_tokens = len(input_batch.req_ids)  # there is one of each request, though not scheduled
    return upstream(self, hidden_states, input_batch, grammar_output)


def with_cut(
    drafts: torch.Tensor, requests: Any, slot: torch.Tensor, position: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return drafts [B, K] with the first id cut of each, and how many are before it [B, 1]; see ``cut``.

    A request that has sampled nothing since its prompt was read has no draft; its slot may hold another's.
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
    """``rejection_sample``: tokens [B, K+1] and how many of them [B], from target rows [R, V] that vLLM has scaled and
    filtered. What asks for keyed noise (watermarks), deferred rejections (fly), or is not known goes vLLM's own way.
    """
    asked = dict(zip(MORE, more)) | named
    theirs = [name for name, x in asked.items() if name not in MORE or (name in THEIRS and is_on(x))]
    if theirs:
        own_way.note(f"rejection_sample's {', '.join(theirs)}")
        rows = (target_logits, draft_logits, draft_sampled, cu_num_logits, pos)
        places = (idx_mapping, expanded_idx_mapping, expanded_local_pos)
        return upstream(*rows, *places, temperature, seed, num_speculative_steps, *more, **named)
    K = num_speculative_steps
    first, end = cu_num_logits[:-1].to(torch.int64), cu_num_logits[1:, None]
    column = torch.arange(K + 1, device=first.device)
    row = first[:, None] + column
    behind = row[:, 1:]  # a draft's id stands beside the row behind it
    drafts = torch.where(behind < end, draft_sampled[behind.clamp(max=draft_sampled.size(0) - 1)], -1)
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
    if kept is None:
        return out.tokens, out.num_accepted + 1
    return out.tokens.where(column <= kept, -1), out.num_accepted.minimum(kept[:, 0]).to(torch.int32) + 1

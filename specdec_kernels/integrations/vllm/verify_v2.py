# SPDX-License-Identifier: Apache-2.0
"""The rejection sampling of vLLM's V2 model runner on verify_chain.

Its draft rows stay by request slot [slots, K, V], where the drafter wrote them before any temperature; the request's
temperature and seed lie by slot too. Everything is found by number, in fixed shapes: nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specdec_kernels.integrations.vllm import own_way
from specdec_kernels.integrations.vllm.verify import is_on
from specdec_kernels.ops.verify_chain import verify_chain

# what rejection_sample takes behind num_speculative_steps, in its order
OURS = ("synthetic_conditional_rates", "use_fp64", "use_block_verification")
THEIRS = ("contexts", "watermarking", "watermarking_skip_mask", "watermark_key", "fly_window_size")
MORE = (*OURS, *THEIRS, "fly_entropy_threshold", "fly_entropy_top_k")


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
    row = first[:, None] + torch.arange(K + 1, device=first.device)
    behind = row[:, 1:]  # a draft's id stands beside the row behind it
    drafts = torch.where(behind < end, draft_sampled[behind.clamp(max=draft_sampled.size(0) - 1)], -1)
    slot = idx_mapping.to(torch.int64)
    of_request = temperature[slot]
    arguments: dict[str, Any] = {}
    if draft_logits is not None:
        arguments["draft_row"] = slot[:, None] * draft_logits.size(1) + torch.arange(K, device=slot.device)
        arguments["draft_temperature"] = of_request
    rates = asked.get("synthetic_conditional_rates")
    if rates is not None:
        arguments |= {"rule": "synthetic", "alpha": rates[None, :K]}
    out = verify_chain(
        target_logits,
        drafts,
        draft_logits,
        target_row=row,
        temperature=(of_request != 0).to(torch.float32),
        method="block" if asked.get("use_block_verification") else "token",
        seed=seed[slot],
        offset=pos[first].to(torch.int64),
        **arguments,
    )
    return out.tokens, out.num_accepted + 1

# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling of vLLM by torch.ops.specdec, as a file in vLLM's own tree: nothing is patched at run time.

The file would be vllm/v1/sample/ops/specdec.py. At the head of `rejection_sample`
(vllm/v1/sample/rejection_sampler.py; 0.32 has no `fly_window_size`) two lines would call it:

    if not synthetic_mode and fly_window_size is None and specdec.serves(target_logits, draft_probs):
        return specdec.rejection_sample(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, ...)

vLLM needs nothing at build time. A plugin registers the ops (`import specdec_kernels`), VLLM_USE_SPECDEC=1 turns them
on, and vLLM's own code verifies the steps that they do not serve. The plugin of this package does more (docs/vllm.md):
it reads the model's raw logits. This file takes the logits that vLLM has scaled and filtered.
"""

import functools
import os

import torch


@functools.cache
def is_enabled() -> bool:
    """Return whether the switch is on and a plugin has registered the ops."""
    return os.environ.get("VLLM_USE_SPECDEC", "0") == "1" and hasattr(torch.ops.specdec, "verify_chain")


@functools.cache
def probe(device_type: str, logits: torch.dtype, draft: torch.dtype | None) -> str | None:
    """Return why the ops do not serve this device and these types, in words; None if they do. Runs nothing."""
    from specdec_kernels import supports

    draft_rows = {"draft": draft is not None, "draft_dtype": draft, "draft_kind": "probs"}
    return supports("verify_chain", device=device_type, dtype=logits, views=["temperature"], **draft_rows).reason


def serves(target_logits: torch.Tensor, draft_probs: torch.Tensor | None) -> bool:
    """Return whether `rejection_sample` below takes this step. Does not wait for the device."""
    rows = [x for x in (target_logits, draft_probs) if x is not None]
    if not is_enabled() or any(x.stride(-1) != 1 for x in rows):
        return False
    return not probe(target_logits.device.type, target_logits.dtype, None if draft_probs is None else draft_probs.dtype)


def rejection_sample(
    draft_token_ids: torch.Tensor,  # [D]
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor,  # [B], inclusive
    draft_probs: torch.Tensor | None,  # [D, V]
    target_logits: torch.Tensor,  # [D, V], scaled and filtered
    bonus_token_ids: torch.Tensor,  # [B, 1]
    sampling_metadata,
) -> torch.Tensor:
    """Return tokens [B, max_spec_len + 1] int32: the accepted drafts, one more token, then -1."""
    B, device = len(num_draft_tokens), target_logits.device
    greedy = sampling_metadata.all_greedy
    # vLLM has scaled the rows already: temperature 1 samples from them as they are, 0 takes the argmax.
    temperature = torch.zeros(B, device=device) if greedy else (sampling_metadata.temperature != 0).float()
    seed = torch.randint(1 << 62, (B,), device=device)
    for b, generator in sampling_metadata.generators.items():  # requests with a seed: one number each
        if num_draft_tokens[b]:
            seed[b] = torch.randint(1 << 62, (), device=device, generator=generator)
    side = {"top_k": None, "top_p": None, "min_p": None, "top_n_sigma": None, "numbers": None, "stats": None}
    target = {"logits": target_logits, "temperature": temperature, "kind": 0, "row": None}
    # A greedy request accepts the target's argmax alone, so no draft row is read.
    draft = {"logits": None if greedy else draft_probs, "temperature": None, "kind": 1, "row": None}
    out = torch.ops.specdec.verify_chain(
        draft_tokens=draft_token_ids,
        cu_draft=torch.nn.functional.pad(cu_num_draft_tokens, (1, 0)),
        max_draft=max_spec_len,
        bonus_tokens=bonus_token_ids.view(-1),
        method=0,
        seed=seed,
        offset=torch.zeros_like(seed),
        **{f"target_{name}": x for name, x in (side | target).items()},
        **{f"draft_{name}": x for name, x in (side | draft).items()},
    )
    return out[0].to(torch.int32)

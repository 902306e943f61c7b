# SPDX-License-Identifier: Apache-2.0
"""min-p and logit bias under speculation, which vLLM itself refuses.

V1's logits processors are built as if there were no speculation. Their state holds what requests ask for, and ``views``
reads it. V2's sampler supports both already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_kernels.integrations.vllm import fallback
from specdec_kernels.integrations.vllm.upload import on


def validate_spec_decode(upstream: Callable, self: Any, speculative_config: Any) -> None:
    """Replacement of ``SamplingParams._validate_spec_decode``: allow min-p and logit_bias.

    Raises:
        ValueError: a bias is NaN or +inf, which would make its row invalid.
    """
    if speculative_config is None:
        return fallback.no_speculation()
    for token, x in (self.logit_bias or {}).items():
        if not x < math.inf:
            raise ValueError(f"logit_bias: values must be finite or -inf, got {x} for token {token}")


def build_logitsprocs(
    upstream: Callable,
    vllm_config: Any,
    device: torch.device,
    is_pin_memory: bool,
    is_pooling_model: bool,
    custom_logitsprocs: Sequence = (),
) -> Any:
    """Replacement of ``build_logitsprocs``: build all of vLLM's processors under speculation too.

    Under speculation vLLM still refuses a caller's own processors.
    """
    if not vllm_config.speculative_config and not is_pooling_model:
        fallback.no_speculation()
    if is_pooling_model or not vllm_config.speculative_config or custom_logitsprocs:
        return upstream(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(made(vllm_config, device, is_pin_memory) for made in BUILTIN_LOGITS_PROCESSORS)


def min_p(sampling_metadata: Any) -> torch.Tensor | None:
    """Return min-p [B] float32; None if no request has one."""
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if getattr(processor, "min_p_count", 0):
            return processor.min_p.view(-1)
    return None


def apply_logits_processors(
    upstream: Callable, self: Any, logits: torch.Tensor, sampling_metadata: Any, metadata: Any
) -> torch.Tensor:
    """Replacement of ``RejectionSampler.apply_logits_processors`` for rows [D, V]: add biases, and apply min-p.

    Biases are added before penalties, as without drafts. min-p is applied after them; vLLM's verification ignores it.
    """
    least = None if sampling_metadata.all_greedy else min_p(sampling_metadata)
    biased = [x for x in sampling_metadata.logitsprocs.non_argmax_invariant if getattr(x, "biases", None)]
    if least is None and not biased:
        return upstream(self, logits, sampling_metadata, metadata)
    counts = on(list(metadata.num_draft_tokens), logits.device)
    for processor in biased:
        total = sum(len(of) * metadata.num_draft_tokens[request] for request, of in processor.biases.items())
        _add(logits, processor, counts, total)
    logits = upstream(self, logits, sampling_metadata, metadata)
    if least is None:
        return logits
    given = (least, sampling_metadata.temperature)
    share, temperature = (x.repeat_interleave(counts, output_size=logits.size(0))[:, None] for x in given)
    reach = torch.where(share > 0, temperature * share.log(), -torch.inf)  # z >= max + T ln min_p is kept
    return logits.masked_fill_(logits < logits.amax(1, keepdim=True) + reach, -torch.inf)


def _add(logits: torch.Tensor, processor: Any, counts: torch.Tensor, total: int) -> None:
    """Add each bias (request, token) to all rows of its request; `total` is the number of additions."""
    request, token = (x.to(torch.int64) for x in processor.logits_slice)
    times = counts[request]
    first = (counts.cumsum(0) - counts)[request] - (times.cumsum(0) - times)
    row = first.repeat_interleave(times, output_size=total) + torch.arange(total, device=logits.device)
    repeated = [x.repeat_interleave(times, output_size=total) for x in (token, processor.bias_tensor)]
    logits.index_put_((row, repeated[0]), repeated[1].to(logits.dtype), accumulate=True)

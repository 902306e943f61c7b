# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``return_sampling_mask`` (V2) by support: the ids that each row's filters keep, for trainers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from specdec_kernels.integrations.vllm import verify_v2
from specdec_kernels.ops.support import support
from specdec_kernels.registry import FLT_MAX
from specdec_kernels.rows import Rows


def from_logits(
    upstream: Callable,
    logits: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_sampled_tokens: torch.Tensor,
    max_num_kept: int,
    rows_per_request: int = 1,
) -> Any:
    """Replacement of ``SamplingMaskTensors.from_logits``: return the kept ids of the row of each emitted token.

    In a step that fell back, vLLM's filters have already set the other ids to -inf.
    """
    kind = upstream.__self__  # type: ignore[attr-defined]  # the class: upstream is its method
    V = logits.size(1)
    most = min(max_num_kept, V, sys.modules[kind.__module__].MAX_COMPACT_SUPPORT)
    slot = torch.arange(rows_per_request, device=logits.device)
    row = torch.where(slot < num_sampled_tokens[:, None], cu_num_logits[:-1, None] + slot, -1)
    rows = verify_v2.sampling_mask_rows(logits)
    if rows is None:
        stats = logits.new_zeros((logits.size(0), 4), dtype=torch.float32)  # stats of T = 1 without filters
        stats[:, 0] = 1
        stats[:, 1] = -FLT_MAX
        rows = Rows(logits, stats=stats)
    ids, counts, bits = support(rows._replace(row=row.flatten()), most)
    return kind(ids, bits.view(torch.uint8)[:, : -(-V // 8)], counts, V, rows_per_request)

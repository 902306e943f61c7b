# SPDX-License-Identifier: Apache-2.0
"""The logprobs of a V1 step by top_logprobs, without copying rows to float32 or sorting them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from specdec_kernels.ops.top_logprobs import top_logprobs
from specdec_kernels.rows import Rows


def logprobs(self: Any, count: int, metadata: Any, rows: Rows, tokens: torch.Tensor) -> Any:
    """Return vLLM's LogprobsTensors for ``logprobs_mode`` raw_logprobs or raw_logits, as
    ``RejectionSampler._get_logprobs_tensors`` does.

    It has B * (K+1) lines, one for each of the tokens [B, K+1]: ids [.., count+1] (the token, then the `count` most
    likely), their logprobs (or logits), and the token's rank. The values of lines whose token is -1 are not used.
    """
    from vllm.v1.outputs import LogprobsTensors

    R = rows.logits.size(0)
    ends = metadata.cu_num_sampled_tokens.to(torch.int64)
    place = pad(ends[:-1], (1, 0))[:, None] + torch.arange(tokens.size(1), device=ends.device)  # rows of the tokens
    # Positions that a request does not have write to a row R that is not read.
    of_row = torch.full((R + 1, 1), -1, dtype=torch.int64, device=tokens.device)
    of_row[torch.where(place < ends[:, None], place, R), 0] = tokens.to(torch.int64)
    found = top_logprobs(rows, count, of_row[:R])
    ids = torch.cat([of_row[:R].clamp(min=0), found.ids], 1)
    values = torch.cat([found.token_logprobs, found.logprobs], 1)
    if self.is_logits_logprobs_mode:
        values = rows.logits.gather(1, ids).to(torch.float32).where(values != -torch.inf, -torch.inf)
    row = place.clamp_(max=R - 1).view(-1)
    return LogprobsTensors(ids[row].to(torch.int32), values[row], found.token_ranks[row, 0])

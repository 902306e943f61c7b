# SPDX-License-Identifier: Apache-2.0
"""Verification of drafts that vLLM's scheduler cut: the first token cut from each draft is tested too.

A grammar cuts a draft at the first drafted id that it forbids, so whether a draft is cut depends on the drawn ids.
Drawing from p at the cut would be biased. Example: p = (.5, .5) and q = (.4, .1, .5 forbidden) would emit (.65, .35).
Instead the cut id is tested like any draft: its p(id) is 0, so it is rejected, and the token there follows
norm((p - q)+). Its target row exists: it is that of the bonus token, after the scheduled drafts.

Drafts cut for other reasons (a token budget, the model's length) are handled in the same way, which is exact for every
reason. The token after the tested one has no row and is dropped.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specdec_kernels.integrations.vllm.upload import on


@dataclass(frozen=True)
class Drafts:
    """The D drafts that a step verifies, in order of requests, including the cut ones."""

    metadata: Any  # SpecDecodeMetadata, as if the cut ids had been scheduled
    target_row: torch.Tensor | None  # [D+B] int64, the index of each position's row in the logits; None: nothing cut
    draft_row: torch.Tensor | None  # [D] int64, each draft's row in the drafter's rows [S K, V]; None: no rows


def sampled(runner: Any) -> frozenset[str]:
    """Return the requests that sample a token in this step: those that are not in the middle of their prompt."""
    ids = runner.input_batch.req_ids
    partial = runner.discard_request_mask.np[: len(ids)]
    return frozenset(request for request, drop in zip(ids, partial, strict=True) if not drop)


def places(runner: Any, num_draft: list[int], before: frozenset[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return [B]: each request's index in the drafter's last batch (-1: none), and whether its draft was cut.

    Args:
        runner: GPUModelRunner.
        num_draft: the number of scheduled drafts of each request.
        before: the requests that sampled a token in the step before.
    """
    B, rows = len(num_draft), runner._draft_probs
    if rows is None:
        return np.full(B, -1), np.zeros(B, dtype=bool)
    place_of = {request: place for place, request in enumerate(runner._draft_prob_req_ids)}
    place = np.array([place_of.get(request, -1) for request in runner.input_batch.req_ids], dtype=np.int64)
    own = np.array([request in before for request in runner.input_batch.req_ids], dtype=bool)
    return place, own & (place >= 0) & (np.array(num_draft) < rows.size(1))


def drafts(runner: Any, metadata: Any, place: np.ndarray, was_cut: np.ndarray) -> Drafts:
    """Return the step's drafts, with the first cut one of each request.

    Drafts of a request that is not in the drafter's last batch cannot be tested. Their ids become -1.
    """
    if runner._draft_probs is None:
        return Drafts(metadata, None, None)
    device, K = runner._draft_probs.device, runner._draft_probs.size(1)
    scheduled = np.array(metadata.num_draft_tokens, dtype=np.int64)
    counts = scheduled + was_cut
    request, slot = _each(counts)
    missing = (place[request] < 0) | (slot >= K)
    draft_row = on(np.where(missing, 0, place[request] * K + slot), device)
    if not was_cut.any() and not missing.any():
        return Drafts(metadata, None, draft_row)
    metadata = copy(metadata)
    ids = runner._draft_token_ids.reshape(-1)[draft_row].to(metadata.draft_token_ids.dtype)
    metadata.draft_token_ids = ids.masked_fill_(on(missing, device), -1)
    if not was_cut.any():
        return Drafts(metadata, None, draft_row)
    request, slot = _each(counts + 1)
    first = np.cumsum(scheduled + 1) - scheduled - 1
    target_row = on(first[request] + np.minimum(slot, scheduled[request]), device)
    _lengthen(metadata, counts, target_row)
    return Drafts(metadata, target_row, draft_row)


def _lengthen(metadata: Any, counts: np.ndarray, target_row: torch.Tensor) -> None:
    """Change metadata to that of counts [B] drafts. target_row: each position's index in the step's logits."""
    device = target_row.device
    metadata.num_draft_tokens, metadata.max_spec_len = counts.tolist(), int(counts.max())
    ends = on(np.cumsum(counts).astype(np.int32), device)
    metadata.cu_num_draft_tokens = ends
    metadata.cu_num_sampled_tokens = ends + torch.arange(1, len(counts) + 1, dtype=torch.int32, device=device)
    metadata.bonus_logits_indices = metadata.cu_num_sampled_tokens - 1
    request, slot = _each(counts)
    metadata.target_logits_indices = on((np.arange(len(slot)) + request).astype(np.int32), device)
    metadata.logits_indices = metadata.logits_indices[target_row]


def _each(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the request of each of sum(counts) items, and its index within the request."""
    request = np.repeat(np.arange(len(counts)), counts)
    return request, np.arange(len(request)) - (np.cumsum(counts) - counts)[request]


def kept(tokens: torch.Tensor, scheduled: Any) -> torch.Tensor:
    """Return tokens [B, K+1] with the columns of the scheduled drafts, from those of the longer drafts.

    Tokens after a cut draft are dropped, since they have no row.
    """
    counts = torch.diff(scheduled.cu_num_draft_tokens, prepend=scheduled.cu_num_draft_tokens.new_zeros(1))
    tokens = tokens[:, : scheduled.max_spec_len + 1]
    return tokens.where(torch.arange(tokens.size(1), device=tokens.device) <= counts[:, None], -1)


def kept_output(out: Any, scheduled: Any) -> Any:
    """Return vLLM's SamplerOutput with the columns of the scheduled drafts, from that of the longer drafts."""
    out.sampled_token_ids = kept(out.sampled_token_ids, scheduled)
    if out.logprobs_tensors is not None:
        B, columns = out.sampled_token_ids.shape
        of_layout = (x.unflatten(0, (B, -1))[:, :columns].flatten(0, 1) for x in out.logprobs_tensors[:3])
        out.logprobs_tensors = type(out.logprobs_tensors)(*of_layout)
    return out


def with_cut_ids(sampling_metadata: Any, was_cut: np.ndarray) -> Any:
    """Return vLLM's sampling metadata with a placeholder after each draft that was cut.

    vLLM counts the rows of penalties and bans by spec_token_ids; it never reads the last id of a request.
    """
    if not sampling_metadata.spec_token_ids:
        return sampling_metadata
    longer = copy(sampling_metadata)
    longer.spec_token_ids = [
        [*ids, 0] if more else ids for ids, more in zip(sampling_metadata.spec_token_ids, was_cut, strict=True)
    ]
    return longer

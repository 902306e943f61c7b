# SPDX-License-Identifier: Apache-2.0
"""The in-place outputs of SGLang's verification kernels: the accepted path's tokens, their indices, its length."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check


def check(op: str, candidates: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor) -> int:
    """Check the outputs' shapes; return S, the most tokens that a request emits."""
    B = candidates.size(0)
    _check.dims(op, "accept_index", accept_index, "B, S")
    S = accept_index.size(1)
    if S == 0:
        raise ValueError(f"{op}: accept_index must have the root's column, got {list(accept_index.shape)}")
    _check.shape(op, "accept_index", accept_index, B=B, S=S)
    _check.shape(op, "accept_token_num", accept_token_num, B=B)
    return S


def write(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    retrive_index: torch.Tensor,
    path: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Write the outputs. path [B, S]: the root and the accepted nodes, then -1; tokens [B, S]: the token after each."""
    kept = path >= 0
    places = retrive_index.to(torch.int64).gather(1, path.clamp(min=0).to(torch.int64))
    # After the path's end the root's entry is written again, so no shape depends on the path's length.
    written = torch.where(kept, tokens, tokens[:, :1]).to(predicts.dtype)
    predicts.scatter_(0, places.flatten(), written.flatten())
    accept_index.copy_(torch.where(kept, places.to(accept_index.dtype), accept_index))
    accept_token_num.copy_(kept.sum(1) - 1)

# SPDX-License-Identifier: Apache-2.0
"""What SGLang's verification kernels write, in place: the tokens of the accepted path, its places, its length."""

from __future__ import annotations

import torch

from specdec_kernels.ops import _check


def check(op: str, candidates: torch.Tensor, accept_index: torch.Tensor, accept_token_num: torch.Tensor) -> int:
    """S: how many tokens a request emits at most."""
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
    """path [B, S]: the root and the accepted nodes, then -1; tokens [B, S]: what stands behind each of them."""
    kept = path >= 0
    places = retrive_index.to(torch.int64).gather(1, path.clamp(min=0).to(torch.int64))
    # Behind the path the root's token is written to the root's place again: no shape depends on the path's length.
    written = torch.where(kept, tokens, tokens[:, :1]).to(predicts.dtype)
    predicts.scatter_(0, places.flatten(), written.flatten())
    accept_index.copy_(torch.where(kept, places.to(accept_index.dtype), accept_index))
    accept_token_num.copy_(kept.sum(1) - 1)

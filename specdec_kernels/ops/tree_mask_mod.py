# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import torch

from specdec_kernels.ops import _call
from specdec_kernels.ops.tree_mask import MAX_LENGTH, per_request, tree_mask


def tree_mask_mod(
    parents: torch.Tensor, prefix_len: int | torch.Tensor = 0, *, tree_start: int | torch.Tensor | None = None
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the mask of ``tree_mask`` as a ``mask_mod`` for torch's FlexAttention, which stores no N x keys mask.

    The ancestors are packed once, in one bit for each pair of nodes. The returned function looks a bit up. Query i is
    node i. Keys have the order of ``tree_mask`` with num_keys: the prefix, then the tree.

    Args:
        parents, prefix_len, tree_start: as in ``tree_mask``.

    Returns:
        ``mask_mod(b, h, q_idx, kv_idx)``, for ``create_block_mask(mask_mod, B, None, N, keys)`` and for
        ``flex_attention`` under torch.compile.

    Raises:
        TypeError, ValueError: as in ``tree_mask``.

    Example:
        >>> from torch.nn.attention.flex_attention import create_mask
        >>> seen = tree_mask_mod(torch.tensor([[-1, 0, 0]]), 2)
        >>> create_mask(seen, 1, None, 3, 5, device="cpu")[0, 0].int().tolist()
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 1]]

    Source: SpecInfer, Miao et al. 2023, section 4 (tree attention).
    """
    parents, prefix, start = per_request("tree_mask_mod", parents, prefix_len, tree_start)
    try:
        packed = tree_mask(parents, prefix, "uint32", tree_start=start).mask
    except _call.REFUSED as error:
        raise _call.renamed(error, ("tree_mask: ", "tree_mask_mod: ")) from None
    B, N = parents.shape
    words = packed.view(torch.int32)  # torch has few operations on unsigned words
    prefix = _lengths(prefix).expand(B)
    start = prefix if start is None else _lengths(start).expand(B)

    def mask_mod(b, h, q_idx, kv_idx):
        node = kv_idx - start[b]
        inside = (node >= 0) & (node < N)
        at = node.clamp(0, N - 1)
        ancestor = (words[b, q_idx, at // 32] >> (at % 32)) & 1
        committed = (kv_idx < prefix[b]) & ((words[b, q_idx, 0] & 1) != 0)
        return torch.where(inside, ancestor != 0, committed)

    return mask_mod


def _lengths(x: torch.Tensor) -> torch.Tensor:
    """Return lengths as int64, with 0 for invalid ones, as in ``tree_mask``.

    They are converted first, since torch would compare an int32 tensor with 2^62 in int32."""
    x = x.to(torch.int64)
    return x.where((x >= 0) & (x <= MAX_LENGTH), 0)

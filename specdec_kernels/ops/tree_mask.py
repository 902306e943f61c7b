# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake
from specdec_kernels.registry import MASK_FORMATS

_tree_mask = _call.op("tree_mask")
MAX_LENGTH = (1 << 62) - 1  # of a prefix, so that the positions of the nodes after it are int64 too

_DTYPES = {code: getattr(torch, name) for name, code in MASK_FORMATS.items()}
_BITS = {torch.uint8: 8, torch.uint32: 32, torch.uint64: 64}
_ADDITIVE = {dtype: code for code, dtype in _DTYPES.items() if dtype.is_floating_point}


class TreeMask(NamedTuple):
    mask: torch.Tensor  # [B, N, keys] bool or float, or packed
    depth: torch.Tensor  # [B, N] int32: edges between the node and its root
    positions: torch.Tensor  # [B, N] int64: prefix_len + depth
    status: torch.Tensor  # [B] int32: 0 or STATUS_INVALID_* bits


def tree_mask(
    parents: torch.Tensor,
    prefix_len: int | torch.Tensor = 0,
    format: str = "bool",
    *,
    num_keys: int | None = None,
    tree_start: int | torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> TreeMask:
    """Return the attention mask of a tree of tokens: each node attends to itself, its ancestors and the prefix.

    For nodes i and j, M[i, j] = 1 iff j is i or an ancestor of i. A padding node (parent -1 at i > 0) attends to itself
    only, so that its row of the softmax is not empty, unless its key is num_keys or more. The descendants of a padding
    node do not attend to the prefix either.

    Args:
        parents: [B, N] int32 or int64, any strides, parents[i] < i, -1 for the root and for padding, as from
            ``build_tree`` or an engine. [N]: one tree for all requests; prefix_len or tree_start then give
            their number.
        prefix_len: committed tokens before the root, a number or [B] int32 or int64. The root is at position
            prefix_len.
        format: "bool" [B, N, keys]; "additive" [B, N, keys] of ``dtype``, 0 or -inf; "uint32" and "uint64" [B, N,
            ceil(keys / w)], key j in bit j % w of word j // w; "uint8" [B, ceil(N * keys / 8)], the rows of a request
            without gaps, lowest bit first, as FlashInfer's packed custom mask. Bits past the last key are 0.
        num_keys: the number of key columns. None: the keys are the N nodes, without the prefix. Otherwise key j <
            prefix_len[b] is in the prefix, and key tree_start[b] + j is node j. No node attends to any other key, and a
            node whose key is num_keys or more has no column.
        tree_start: the key of node 0, a number or [B]. None: right after the prefix. For a cache padded to one length,
            pass that length here and the lengths of the requests as prefix_len.
        dtype: of "additive": float32, float64, bfloat16 or float16.

    Returns:
        TreeMask. For ``scaled_dot_product_attention`` pass ``mask[:, None]`` of format "bool", or of "additive" in the
        queries' dtype. For FlexAttention see ``tree_mask_mod``.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came. An invalid parent or length raises on
        CPU tensors. On a GPU, where a check would wait for the device, such a node counts as padding, such a length as
        0, and ``status`` has a bit set.

    Example:
        >>> tree_mask(torch.tensor([[-1, 0, 0, 1]]), 7, "uint32").mask.tolist()
        [[[1], [3], [5], [11]]]

    Source: SpecInfer, Miao et al. 2023, section 4 (tree attention).
    """
    op = "tree_mask"
    parents, prefix_len, tree_start = per_request(op, parents, prefix_len, tree_start)
    _check.choice(op, "format", format, ("bool", "additive", "uint8", "uint32", "uint64"))
    if format == "additive" and not (isinstance(dtype, torch.dtype) and dtype in _ADDITIVE):
        what = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else _check.shown(dtype)
        raise TypeError(f"{op}: dtype must be float32, float64, bfloat16 or float16, got {what}")
    number = _ADDITIVE[dtype] if format == "additive" else MASK_FORMATS[format]
    num_keys = (
        -1
        if num_keys is None
        else _check.integer(op, "num_keys", num_keys, 0, 1 << 30, "in [0, 2^30] or None", "an int or None")
    )
    return TreeMask(*_tree_mask(parents, prefix_len, tree_start, num_keys, number))


def per_request(op: str, parents: torch.Tensor, prefix_len: object, tree_start: object):
    """Return parents as [B, N] and the two lengths as tensors [B] or [1]. tree_start may be None, and stays None."""
    _check.tensor(op, "parents", parents)
    if parents.dim() == 1:
        sizes = [len(x) for x in (prefix_len, tree_start) if isinstance(x, torch.Tensor) and x.dim() == 1]
        parents = parents.expand(next((n for n in sizes if n != 1), 1), -1)
    prefix = _length(op, "prefix_len", prefix_len, parents)
    start = None if tree_start is None else _length(op, "tree_start", tree_start, parents)
    return parents, prefix, start


def _length(op, name, x, parents):
    if isinstance(x, torch.Tensor):
        return x
    x = _check.integer(op, name, x, 0, MAX_LENGTH, ">= 0 and below 2^62", "a number or a tensor")
    return torch.full((1,), x, dtype=torch.int64, device=parents.device)


@fake("tree_mask")
def _(parents, num_keys, format):
    B, N = parents.shape
    keys, dtype = N if num_keys == -1 else num_keys, _DTYPES[format]
    if dtype == torch.uint8:
        shape = (B, (N * keys + 7) // 8)
    else:
        bits = _BITS.get(dtype, 1)
        shape = (B, N, (keys + bits - 1) // bits)
    return (
        parents.new_empty(shape, dtype=dtype),
        parents.new_empty((B, N), dtype=torch.int32),
        parents.new_empty((B, N), dtype=torch.int64),
        parents.new_empty((B,), dtype=torch.int32),
    )

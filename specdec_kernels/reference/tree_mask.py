# SPDX-License-Identifier: Apache-2.0
"""The attention mask of a tree of tokens: a node of the tree sees itself, its ancestors and the prefix."""

from typing import NamedTuple

import numpy as np
import torch

PACKED = {"uint8": "<u1", "uint32": "<u4", "uint64": "<u8"}


class TreeMask(NamedTuple):
    mask: torch.Tensor
    depth: torch.Tensor  # [B, N] int32
    positions: torch.Tensor  # [B, N] int64, prefix_len + depth


def tree_mask(parents, prefix_len=0, format="bool", *, num_keys=None, tree_start=None, dtype=torch.float32):
    """Return the TreeMask of parents [B, N] or [N]. prefix_len: an int or [B], committed tokens before the root.

    num_keys None: the keys are the N nodes, without the prefix. Otherwise there are num_keys columns. Key j <
    prefix_len[b] is in the prefix, which every node connected to the root attends to. Key tree_start[b] + j is node j
    (tree_start: an int or [B]; None: prefix_len, directly after the prefix). A node whose key is num_keys or more has
    no column. No node attends to a key that is neither in the prefix nor a node.

    M[i, j] = 1 iff j is i or an ancestor of i: M[i] = e_i | M[parents[i]], i ascending. depth = popcount(M[i]) - 1. A
    padding node (parent -1, but not the root) attends only to itself, at depth 0, so that its softmax row is not empty
    if it has a column.

    format: "bool" [B, N, keys]; "additive" [B, N, keys] of dtype, 0 or -inf; "uint32", "uint64" [B, N, ceil(keys / w)],
    key j in bit j % w of word j // w; "uint8" [B, ceil(N * keys / 8)], a request's rows without gaps, lowest bit first,
    as in FlashInfer's packed custom mask.
    """
    if format not in ("bool", "additive", *PACKED):
        raise ValueError(f"tree_mask: format must be 'bool', 'additive', 'uint8', 'uint32' or 'uint64', got {format!r}")
    if parents.dim() == 1:
        given = [len(x) for x in (prefix_len, tree_start) if torch.is_tensor(x) and x.dim()]
        parents = parents.expand(max(given or [1]), -1)
    B, N = parents.shape
    prefix = torch.as_tensor(prefix_len, device="cpu").expand(B).tolist()
    start = prefix if tree_start is None else torch.as_tensor(tree_start, device="cpu").expand(B).tolist()
    nodes = np.zeros((B, N, N), dtype=bool)
    for b, row in enumerate(parents.tolist()):
        for i, parent in enumerate(row):
            if not -1 <= parent < i:
                raise ValueError(f"tree_mask: parents[{b}, {i}] must be in [-1, {i}), got {parent}")
            if parent >= 0:
                nodes[b, i] = nodes[b, parent]
            nodes[b, i, i] = True
    depth = torch.from_numpy(nodes.sum(-1) - 1).int()
    positions = torch.tensor(prefix, dtype=torch.int64, device="cpu")[:, None] + depth
    mask = nodes
    if num_keys is not None:
        mask = np.zeros((B, N, num_keys), dtype=bool)
        for b in range(B):
            mask[b, :, : prefix[b]] = nodes[b, :, :1].any(-1, keepdims=True)
            width = max(0, min(N, num_keys - start[b]))
            mask[b, :, start[b] : start[b] + width] = nodes[b, :, :width]
    return TreeMask(formatted(mask, format, dtype), depth, positions)


def formatted(mask, format, dtype):
    if format == "bool":
        return torch.from_numpy(mask)
    if format == "additive":
        return torch.zeros(mask.shape, dtype=dtype, device="cpu").masked_fill_(torch.from_numpy(~mask), -torch.inf)
    if format == "uint8":
        return torch.from_numpy(
            np.packbits(mask.reshape(len(mask), mask.shape[1] * mask.shape[2]), axis=-1, bitorder="little")
        )
    word = np.dtype(PACKED[format])
    bits = 8 * word.itemsize
    mask = np.pad(mask, ((0, 0), (0, 0), (0, -mask.shape[-1] % bits)))
    return torch.from_numpy(np.packbits(mask, axis=-1, bitorder="little").view(word))

# SPDX-License-Identifier: Apache-2.0
"""SGLang's description of an EAGLE tree as links, positions and an attention mask."""

from __future__ import annotations

import torch

from specdec_kernels.ops.tree_mask import TreeMask
from specdec_kernels.ops.tree_mask import tree_mask as masks

FULL_MASK, QLEN_ONLY, QLEN_ONLY_BITPACKING = range(3)


def build_tree_kernel_efficient(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write the links, positions and mask of the tree of selected drafts, in place. Differences from SGLang:

    - The buffers of links need not be filled with -1 before, nor a packed mask with zeros: all entries are written.
    - A draft whose parent was not selected becomes padding: no list contains it, and it attends only to itself. SGLang
      prints a warning.

    Args:
        parent_list: [B, topk * (depth - 1) + 1] int64: entry i is the number of the draft whose children are the drafts
            i * topk ... (i + 1) * topk - 1; entry 0 stands for the root. May be empty if depth is 1.
        selected_index: [B, N-1] int64, ascending: the numbers of the drafts that are nodes 1 ... N-1.
        verified_seq_len: [B], the committed tokens of each request: the root's position.
        tree_mask: flat. Mode 0 (full): for each request b, N rows of verified_seq_len[b] + N keys; entries of the
            prefix are not written. Mode 1 (queries only): [B, N, N]. Mode 2 (packed): each row's N bits in 1, 2 or 4
            bytes, lowest bit first, N <= 32.
        positions: [B*N] int64. retrive_index, retrive_next_token, retrive_next_sibling: [B, N] int64.
        topk, depth, draft_token_num, tree_mask_mode: depth is not used; draft_token_num is N.
    """
    op, N = "build_tree_kernel_efficient", draft_token_num
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY, QLEN_ONLY_BITPACKING):
        raise ValueError(f"{op}: tree_mask_mode must be 0, 1 or 2, got {tree_mask_mode}")
    if tree_mask_mode == QLEN_ONLY_BITPACKING and N > 32:
        raise ValueError(f"{op}: draft_token_num must be at most 32 where the mask is packed, got {N}")
    B, device = selected_index.size(0), selected_index.device
    parents = _parents(parent_list, selected_index, topk)
    tree = masks(parents, verified_seq_len, "uint32" if tree_mask_mode == QLEN_ONLY_BITPACKING else "bool")
    positions.copy_(tree.positions.flatten())
    retrive_index.copy_(torch.arange(B * N, device=device).view(B, N))
    _write_links(parents, retrive_next_token, retrive_next_sibling)
    _write_mask(tree, verified_seq_len, tree_mask, tree_mask_mode)


def _parents(parent_list: torch.Tensor, selected: torch.Tensor, topk: int) -> torch.Tensor:
    """Return each node's parent [B, N]: 0 for the root's children, else the parent's index in `selected` plus 1.

    It is -1 for the root, and for nodes whose parent was not selected.
    """
    B, drafts = selected.shape
    group = selected // topk
    found = torch.zeros_like(selected)
    if parent_list.size(1):
        number = parent_list.gather(1, group.clamp(max=parent_list.size(1) - 1))
        same = number.unsqueeze(2) == selected.unsqueeze(1)  # [B, drafts, drafts]
        place = same.to(torch.int8).argmax(2) + 1 if drafts else found
        # A parent must come before its child.
        before = torch.arange(1, drafts + 1, device=selected.device)
        found = torch.where(same.any(2) & (place < before), place, -1)
    parents = torch.where(group == 0, 0, found)
    return torch.cat([parents.new_full((B, 1), -1), parents], 1)


def _write_links(parents: torch.Tensor, first_child: torch.Tensor, next_sibling: torch.Tensor) -> None:
    """Write first children and next siblings, in the order of their numbers; -1 ends a list."""
    N = parents.size(1)
    nodes = torch.arange(N, device=parents.device)
    child_of = parents.unsqueeze(1) == nodes.unsqueeze(1)  # [B, node, child]
    first_child.copy_(_first(child_of, nodes))
    siblings = (parents.unsqueeze(1) == parents.unsqueeze(2)) & (parents >= 0).unsqueeze(1)
    next_sibling.copy_(_first(siblings & (nodes > nodes.unsqueeze(1)), nodes))


def _first(marked: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Return [B, N]: the lowest node that is marked in each row, or -1."""
    N = nodes.size(0)
    first = torch.where(marked, nodes, N).amin(2)
    return torch.where(first < N, first, -1)


def _write_mask(tree: TreeMask, prefix: torch.Tensor, out: torch.Tensor, mode: int) -> None:
    B, N = tree.depth.shape
    if mode == QLEN_ONLY_BITPACKING:
        size = 4 if N > 16 else 2 if N > 8 else 1
        rows = tree.mask.view(torch.uint8).view(B * N, 4)[:, :size]  # little endian
        out.view(torch.uint8).view(-1)[: B * N * size].view(B * N, size).copy_(rows)
    elif mode == QLEN_ONLY:
        out.view(-1)[: B * N * N].view(B, N, N).copy_(tree.mask)
    else:
        nodes = torch.arange(N, device=out.device)
        keys = prefix.to(torch.int64) + N
        starts = (keys.cumsum(0) - keys) * N
        places = starts.view(B, 1, 1) + keys.view(B, 1, 1) * nodes.view(N, 1) + prefix.view(B, 1, 1) + nodes
        out.view(-1).scatter_(0, places.flatten(), tree.mask.flatten().to(out.dtype))

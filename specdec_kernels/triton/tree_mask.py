# SPDX-License-Identifier: Apache-2.0
"""tree_mask (csrc/ops/tree_mask/tree_mask.h): one launch climbs from each node towards the root and packs its
ancestors. A second one writes the mask, unless the packed ancestors are the mask."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from specdec_kernels.registry import MASK_FORMATS

from .core import launch
from .core.arguments import values
from .core.memory import load_value

# For each format number: the dtype in which the mask is written, the bits of a visible key, and those of a hidden
# key.
FORMATS = (
    (torch.bool, 1, 0),
    (torch.int32, 0, -(1 << 23)),
    (torch.int64, 0, -(1 << 52)),
    (torch.int16, 0, -(1 << 7)),
    (torch.int16, 0, -(1 << 10)),
    (torch.uint8, 1, 0),
    (torch.int32, 1, 0),
    (torch.int32, 1, 0),
)
UINT8, UINT32, UINT64 = (MASK_FORMATS[name] for name in ("uint8", "uint32", "uint64"))
ELEMENT, BYTE, WORD = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def is_length(n):
    return (n >= 0) & (n >> 62 == 0)


class Lengths(NamedTuple):
    """The number of prefix keys and the tree's first key, as Values."""

    prefix: Any
    start: Any


@triton.jit
def load_length(values, b, inside):
    """Return a length of each request b; 0 if it is invalid."""
    n = load_value(values, b, inside, 0).to(tl.int64)
    return tl.where(is_length(n), n, 0)


@triton.jit
def is_bad_length(values, b, inside):
    return ~is_length(load_value(values, b, inside, 0).to(tl.int64))


@launch.kernel
def climb_kernel(
    parents, request_stride, node_stride, lengths, ancestors, depth, positions, status, B, N, W, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < B * N * W
    row = at // W
    w = at - row * W
    b = row // N
    i = row - b * N
    parents += b * request_stride
    given = tl.load(parents + i * node_stride, mask=inside, other=-1).to(tl.int64)
    bits = tl.zeros([BLOCK], tl.int32)
    nodes = tl.zeros([BLOCK], tl.int32)
    j = tl.where(inside, i, -1)
    # Parents come before children, so once the climb is at a node below word w, no further ancestor is in the word.
    while tl.max((j >= 32 * w).to(tl.int32)) > 0:
        here = j >= 32 * w
        bits = tl.where(here & (j < 32 * w + 32), bits | (1 << (j - 32 * w).to(tl.int32)), bits)
        nodes += here.to(tl.int32)
        up = tl.load(parents + j * node_stride, mask=here, other=-1).to(tl.int64)
        j = tl.where((up >= 0) & (up < j), up, -1)
    tl.store(ancestors + at, bits, mask=inside)
    once = inside & (w == 0)
    tl.store(depth + row, nodes - 1, mask=once)
    prefix = load_length(lengths.prefix, b, once)
    tl.store(positions + row, prefix + nodes - 1, mask=once)

    flags = tl.where((given < -1) | (given >= i), 1, 0)
    root = once & (i == 0)
    flags |= tl.where(is_bad_length(lengths.prefix, b, root) | is_bad_length(lengths.start, b, root), 2, 0)
    tl.atomic_or(status + b, flags, mask=once & (flags > 0))


@triton.jit
def sees(ancestors, b, i, j, lengths, N, W, inside, NODES_ONLY: tl.constexpr):
    """Return whether node i may attend to key j. It may attend to itself and its ancestors, and to the prefix if the
    root is among these."""
    row = ancestors + (b * N + i) * W
    prefix = tl.zeros_like(b)
    start = prefix
    if not NODES_ONLY:
        prefix = load_length(lengths.prefix, b, inside)
        start = prefix
        if lengths.start.data is not None:
            start = load_length(lengths.start, b, inside)
    t = j - start
    in_tree = inside & (t >= 0) & (t < N)
    word = tl.load(row + (t >> 5), mask=in_tree, other=0)
    committed = inside & (j < prefix) & (in_tree == 0)
    rooted = tl.load(row, mask=committed, other=0)
    return (((word >> (t & 31).to(tl.int32)) & 1) | (rooted & 1)) != 0


@launch.kernel
def put_units_kernel(
    ancestors, lengths, mask, units, words, B, N, W, keys, seen, hidden,
    NODES_ONLY: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    unit = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = unit < units
    if KIND == ELEMENT:
        row = unit // keys
        b = row // N
        i, j = row - b * N, unit - row * keys
        s = sees(ancestors, b, i, j, lengths, N, W, exists, NODES_ONLY)
        tl.store(mask + unit, tl.where(s, seen, hidden).to(mask.dtype.element_ty), mask=exists)
    else:
        BITS: tl.constexpr = 8 if KIND == BYTE else 32
        bit = tl.arange(0, BITS)[None, :]
        if KIND == BYTE:  # units are bytes; there are no gaps between the rows of a request
            b = (unit // words)[:, None]
            e = (unit - unit // words * words)[:, None] * 8 + bit
            i = e // keys
            j = e - i * keys
            inside = exists[:, None] & (i < N)
        else:  # units are words; each row begins a new word
            row = (unit // words)[:, None]
            b = row // N + tl.zeros_like(bit)
            i = row - row // N * N
            j = (unit - unit // words * words)[:, None] * 32 + bit
            inside = exists[:, None] & (j < keys)
        s = sees(ancestors, b, i, j, lengths, N, W, inside, NODES_ONLY)
        tl.store(mask + unit, tl.sum(s.to(tl.int32) << bit, 1).to(mask.dtype.element_ty), mask=exists)


def tree_mask(results, parents, prefix_len, tree_start, num_keys, format):
    mask, depth, positions, status = results
    B, N = parents.shape
    nodes_only, packed = num_keys < 0, format in (UINT32, UINT64)
    keys = N if nodes_only else num_keys
    written, seen, hidden = FORMATS[format]
    out = mask.view(written)
    words = out.size(-1)
    direct = nodes_only and packed  # without a prefix, the packed ancestors are the mask; otherwise they are scratch
    W = words if direct else launch.blocks(N, 32)
    ancestors = out if direct else torch.empty((B, N, W), dtype=torch.int32, device=parents.device)
    lengths = Lengths(values(prefix_len), values(tree_start))
    status.zero_()
    args = (parents, *parents.stride(), lengths, ancestors, depth, positions, status, B, N, W)
    launch.run_elements(climb_kernel, B * N * W, *args)
    if out.numel() and not direct:
        kind, per_unit = (BYTE, 8) if format == UINT8 else (WORD, 32) if packed else (ELEMENT, 1)
        block = max(16, launch.elements() * 4 // per_unit)
        args = (ancestors, lengths, out, out.numel(), words, B, N, W, keys, seen, hidden)
        grid = (launch.blocks(out.numel(), block),)
        launch.run(put_units_kernel, grid, 128, *args, NODES_ONLY=nodes_only, KIND=kind.value, BLOCK=block)

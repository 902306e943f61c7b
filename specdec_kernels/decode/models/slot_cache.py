# SPDX-License-Identifier: Apache-2.0
"""A key-value cache of fixed slots, one request each, in which rolling back costs nothing.

The cache keeps no lengths. The caller says at which positions a forward pass writes, and a query sees the positions up
to its own, or those of its ancestors in a tree. What lies behind a request's accepted tokens is stale: no query reaches
it before it is written again. So requests of one batch accept different lengths, and a rejection neither copies nor
recomputes anything; of a tree, the accepted nodes move together (compact).
"""

from typing import NamedTuple

import torch

import specdec_kernels as sk

__all__ = ["Branches", "SlotCache"]


class Branches(NamedTuple):
    """The tokens of a pass as nodes of trees: first[i], first[i] + 1, ... of row i's tree, whose node 0 stands at
    position start[i].

    Node j is cached at start[i] + j until compact(); its position in the text is start[i] + its depth.
    """

    parents: torch.Tensor  # [n, N] int32, as tree_mask takes them; all ancestors of the pass's nodes are among the N
    first: list[int]


class SlotCache:
    """Keys and values of up to `slots` requests with up to `capacity` positions each; layers are allocated when first
    written."""

    def __init__(self, slots: int, capacity: int):
        self.slots, self.capacity = slots, capacity
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys, values: [slots, capacity, heads, head_dim]

    def begin(
        self, start: list[int], width: int, slot: int, device=None, branches: Branches | None = None, places=None
    ) -> torch.Tensor:
        """Open a forward pass of `width` tokens a row, row i in slot `slot + i` from position start[i] -> positions [n,
        width]. places [M]: those of the n * width tokens, row by row, that update() will bring; None: all."""
        first = [0] * len(start) if branches is None else branches.first
        self.rows, self.length = slice(slot, slot + len(start)), max(s + f for s, f in zip(start, first)) + width
        if self.rows.stop > self.slots or self.length > self.capacity:
            raise ValueError(
                f"SlotCache: rows {slot}..{self.rows.stop - 1} up to position {self.length - 1} do not fit "
                f"{self.slots} slots of {self.capacity} positions"
            )
        node = torch.tensor(first)[:, None] + torch.arange(width)
        place = torch.tensor(start)[:, None] + node
        row = self.capacity * torch.arange(slot, self.rows.stop)
        index = (row[:, None] + place).flatten()
        self.index = (index if places is None else index[places]).to(device)
        if branches is None:
            seen, positions = torch.arange(self.length) <= place[..., None], place
        else:
            tree = sk.tree_mask(branches.parents, torch.tensor(start), num_keys=self.length)
            rows = torch.arange(len(start))[:, None]
            seen, positions = tree.mask[rows, node], tree.positions[rows, node]
        self.seen, self.positions = seen.to(device), positions.to(device)
        return self.positions

    def visible(self) -> torch.Tensor:
        """[n, 1, width, length] bool: which positions each query of this pass may see."""
        return self.seen[:, None]

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [M, heads, head_dim] of this pass; returns all up to its last position, [n, heads,
        length, head_dim]."""
        if layer == len(self.layers):
            empty = [x.new_zeros(self.slots, self.capacity, *x.shape[1:]) for x in (keys, values)]
            self.layers.append((empty[0], empty[1]))
        out = []
        for store, new in zip(self.layers[layer], (keys, values)):
            store.view(-1, *store.shape[2:]).index_copy_(0, self.index, new)
            out.append(store[self.rows, : self.length].transpose(1, 2))
        return out[0], out[1]

    @torch.inference_mode()
    def compact(self, start: list[int], paths: list[list[int]]) -> None:
        """Slot i keeps the nodes paths[i] of the tree at start[i], root first: they move up to start[i], start[i] + 1,
        ..."""
        roots = [i * self.capacity + s for i, s in enumerate(start)]
        moves = [
            (root + node, root + j) for root, path in zip(roots, paths) for j, node in enumerate(path) if node != j
        ]
        if moves:
            source, target = torch.tensor(moves).T
            for layer in self.layers:
                for store in layer:
                    flat = store.view(-1, *store.shape[2:])
                    flat[target] = flat[source]

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy slot `source` over slot `target` (the last request takes the place of one that has finished)."""
        for layer in self.layers:
            for store in layer:
                store[target] = store[source]

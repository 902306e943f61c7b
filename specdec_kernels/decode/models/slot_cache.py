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

from ..transfers import CPU, is_free, upload

__all__ = ["Branches", "SlotCache", "kept"]


class Branches(NamedTuple):
    """The tokens of a pass as nodes of trees: first[i], first[i] + 1, ... of row i's tree, whose node 0 stands at
    position start[i].

    Node j is cached at start[i] + j until compact(); its position in the text is start[i] + its depth.
    """

    parents: torch.Tensor  # [n, N] int32, as tree_mask takes them; all ancestors of the pass's nodes are among the N
    first: list[int] | torch.Tensor  # a tensor [n] where it depends on what was drawn


class SlotCache:
    """Keys and values of up to `slots` requests with up to `capacity` positions each; layers are allocated when first
    written."""

    def __init__(self, slots: int, capacity: int):
        self.slots, self.capacity = slots, capacity
        self.tables: tuple[torch.Tensor, ...] = ()  # what a model has laid out for the positions
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys, values: [slots, capacity, heads, head_dim]
        self.states: torch.Tensor | None = None  # [slots, capacity, d], once somebody reads them

    def check(self, start: list[int], width: int, slot: int, branches: Branches | None = None) -> int:
        """Whether a pass fits -> one past the last position that it writes.

        Raises:
            ValueError: it does not.
        """
        rows, end = slot + len(start), _end(start, width, branches)
        if rows > self.slots or end > self.capacity:
            raise ValueError(
                f"SlotCache: rows {slot}..{rows - 1} up to position {end - 1} do not fit "
                f"{self.slots} slots of {self.capacity} positions"
            )
        return end

    def begin(
        self,
        start: list[int] | torch.Tensor,
        width: int,
        slot: int,
        device: torch.device = CPU,
        branches: Branches | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Open a forward pass of `width` tokens a row, row i in slot `slot + i` from position start[i] -> positions [n,
        width]. places [M]: those of the n * width tokens, row by row, that update() will bring; None: all.

        On the CPU the queries see as many positions as are there; elsewhere the whole of the slot is offered to them,
        the mask says what they see, and the shapes of a pass depend on the batch and the width alone; a start that is a
        tensor of the device has been checked.
        """
        end = self.capacity if isinstance(start, torch.Tensor) else self.check(start, width, slot, branches)
        self.rows, self.length = slice(slot, slot + len(start)), end if device.type == "cpu" else self.capacity
        self.sees_all = len(start) == width == 1 and branches is None and self.length == end
        root, node = upload(start, device), torch.arange(width, device=device)[None]
        if branches is not None:
            node = node + upload(branches.first, device)[:, None]
        place = root[:, None] + node
        row = self.capacity * torch.arange(slot, self.rows.stop, device=device)
        self.index = (row[:, None] + place).flatten()
        if places is not None:
            self.index = self.index[places]
        if branches is None:
            self.seen, self.positions = torch.arange(self.length, device=device) <= place[..., None], place
        else:
            tree = sk.tree_mask(branches.parents, root, num_keys=self.length)
            rows = torch.arange(len(start), device=device)[:, None]
            self.seen, self.positions = tree.mask[rows, node], tree.positions[rows, node]
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

    def keep_states(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """From now on every pass leaves the last hidden states of its tokens beside their keys."""
        self.states = torch.zeros(self.slots, self.capacity, size, dtype=dtype, device=device)

    def put_states(self, states: torch.Tensor) -> None:
        """Those of the tokens of this pass, [M, d]."""
        if self.states is not None:
            self.states.view(-1, self.states.shape[2]).index_copy_(0, self.index, states.to(self.states.dtype))

    def states_at(self, places: torch.Tensor, slot: int = 0) -> torch.Tensor:
        """[n, width, d] of row i's places[i] in slot `slot + i`; zeros at places below 0, before the first token."""
        assert self.states is not None
        row = torch.arange(slot, slot + len(places), device=places.device)[:, None]
        return self.states[row, places.clamp(min=0)].masked_fill_((places < 0)[..., None], 0)

    def states_before(self, start: list[int], width: int, slot: int = 0) -> torch.Tensor:
        """[n, width, d] of the places before start[i], start[i] + 1, ...: what a draft reads with the tokens there."""
        assert self.states is not None
        device = self.states.device
        before = upload(start, device)[:, None] + torch.arange(-1, width - 1, device=device)
        return self.states_at(before, slot)

    def _stores(self):
        """All that a position holds, each [slots, capacity, ...]."""
        yield from (store for layer in self.layers for store in layer)
        if self.states is not None:
            yield self.states

    @torch.inference_mode()
    def compact(self, start: list[int], paths: torch.Tensor, slot: int = 0) -> None:
        """Slot `slot + i` keeps the nodes paths[i] of the tree at start[i], root first, -1 behind the last (as
        verify_tree has them): they move up to start[i], start[i] + 1, ..."""
        row, depth = (torch.arange(k, device=paths.device) for k in paths.shape)
        root = (self.capacity * (slot + row) + upload(start, paths.device))[:, None]
        target = root + depth
        source = torch.where(paths >= 0, root + paths, target)
        if is_free(paths):  # nothing is copied that stays where it is
            moved = source != target
            source, target = source[moved], target[moved]
        if target.numel():
            for store in self._stores():
                flat = store.view(-1, *store.shape[2:])
                flat[target] = flat[source]

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Fill a slot with zeros. A mask does not stop a stale key or value that is NaN: 0 * NaN is NaN."""
        for store in self._stores():
            store[slot] = 0

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy slot `source` over slot `target` (the last request takes the place of one that has finished)."""
        for store in self._stores():
            store[target] = store[source]


def _end(start: list[int], width: int, branches: Branches | None) -> int:
    """One past the last position that a pass writes; of trees that grew by what was drawn, that they can reach."""
    first = [0] * len(start) if branches is None else branches.first
    if isinstance(first, torch.Tensor):
        first = first.tolist() if is_free(first) else [branches.parents.shape[1] - width] * len(start)
    return max(s + f for s, f in zip(start, first)) + width


def kept(x: torch.Tensor, keep: str | list[int] | torch.Tensor) -> torch.Tensor:
    """What a pass is asked for of x [n, T, d]: "all" of it, or [n, d] of one token of each row."""
    if isinstance(keep, str):
        return x
    if isinstance(keep, list) and len(set(keep)) == 1:
        return x[:, keep[0]]
    return x[torch.arange(len(keep), device=x.device), upload(keep, x.device)]

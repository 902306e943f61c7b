# SPDX-License-Identifier: Apache-2.0
"""A key-value cache of fixed slots, one request each, in which rolling back rejected tokens costs nothing.

The cache stores no lengths. The caller passes the positions that a forward pass writes. A query sees the positions up
to its own, or those of its ancestors in a tree. Entries after a request's accepted tokens are stale: no query sees
them before they are written again. So the requests of a batch may accept different lengths, and a rejection neither
copies nor recomputes anything. After a tree, the accepted nodes are moved together (compact).
"""

from typing import NamedTuple

import torch

import specdec_kernels as sk

from ..transfers import CPU, is_free, upload

__all__ = ["Branches", "SlotCache", "kept"]


class Branches(NamedTuple):
    """Trees whose nodes are the tokens of a pass: row i feeds nodes first[i], first[i] + 1, ... of its tree.

    Node 0 is at position start[i]. Node j is cached at start[i] + j until compact(); its position in the text is
    start[i] + its depth.
    """

    parents: torch.Tensor  # [n, N] int32, as tree_mask takes them; all ancestors of the pass's nodes are among the N
    first: list[int] | torch.Tensor  # a tensor [n] if it depends on drawn tokens


class SlotCache:
    """Keys and values of up to `slots` requests with up to `capacity` positions each.

    A layer is allocated at its first write.
    """

    def __init__(self, slots: int, capacity: int):
        self.slots, self.capacity = slots, capacity
        self.tables: tuple[torch.Tensor, ...] = ()  # a model's tables per position
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys, values: [slots, capacity, heads, head_dim]
        self.states: torch.Tensor | None = None  # [slots, capacity, d]; None until keep_states()

    def check(self, start: list[int], width: int, slot: int, branches: Branches | None = None) -> int:
        """Check that a pass fits -> one past the last position that it writes.

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
        """Open a forward pass of `width` tokens per row -> positions [n, width]. Row i is in slot `slot + i`.

        On the CPU the pass covers the positions in use. On other devices it covers whole slots under a mask, so its
        shapes depend only on the batch and the width.

        start: the first position of each row. A tensor on the device must have been checked (check()).
        places [M]: indices of the tokens, among the n * width row by row, that update() will write; None: all.
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
        """Return [n, 1, width, length] bool: the positions that each query of this pass may see."""
        return self.seen[:, None]

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [M, heads, head_dim] of this pass -> those of all its positions.

        Both results are [n, heads, length, head_dim], of the `length` positions that the pass covers (begin).
        """
        if layer == len(self.layers):
            empty = [x.new_zeros(self.slots, self.capacity, *x.shape[1:]) for x in (keys, values)]
            self.layers.append((empty[0], empty[1]))
        out = []
        for store, new in zip(self.layers[layer], (keys, values)):
            store.view(-1, *store.shape[2:]).index_copy_(0, self.index, new)
            out.append(store[self.rows, : self.length].transpose(1, 2))
        return out[0], out[1]

    def keep_states(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate room for the last hidden states: from now on every pass stores those of its tokens."""
        self.states = torch.zeros(self.slots, self.capacity, size, dtype=dtype, device=device)

    def put_states(self, states: torch.Tensor) -> None:
        """Store the states [M, d] of this pass's tokens; nothing without keep_states()."""
        if self.states is not None:
            self.states.view(-1, self.states.shape[2]).index_copy_(0, self.index, states.to(self.states.dtype))

    def states_at(self, places: torch.Tensor, slot: int = 0) -> torch.Tensor:
        """Return the states [n, width, d] at row i's positions places[i] in slot `slot + i`; zeros at positions < 0."""
        assert self.states is not None
        row = torch.arange(slot, slot + len(places), device=places.device)[:, None]
        return self.states[row, places.clamp(min=0)].masked_fill_((places < 0)[..., None], 0)

    def states_before(self, start: list[int], width: int, slot: int = 0) -> torch.Tensor:
        """Return the states [n, width, d] that predicted the tokens at start[i], start[i] + 1, ...

        They are stored one position before the tokens.
        """
        assert self.states is not None
        device = self.states.device
        before = upload(start, device)[:, None] + torch.arange(-1, width - 1, device=device)
        return self.states_at(before, slot)

    def _stores(self):
        """Yield every tensor indexed by position: keys, values and states, each [slots, capacity, ...]."""
        yield from (store for layer in self.layers for store in layer)
        if self.states is not None:
            yield self.states

    @torch.inference_mode()
    def compact(self, start: list[int], paths: torch.Tensor, slot: int = 0) -> None:
        """Move the nodes paths[i] of the tree at start[i] in slot `slot + i` to positions start[i], start[i] + 1, ...

        paths: root first, -1 after the last node, as verify_tree returns them.
        """
        row, depth = (torch.arange(k, device=paths.device) for k in paths.shape)
        root = (self.capacity * (slot + row) + upload(start, paths.device))[:, None]
        target = root + depth
        source = torch.where(paths >= 0, root + paths, target)
        if is_free(paths):  # skip nodes that are in place
            moved = source != target
            source, target = source[moved], target[moved]
        if target.numel():
            for store in self._stores():
                flat = store.view(-1, *store.shape[2:])
                flat[target] = flat[source]

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Fill a slot with zeros. A mask does not hide a stale NaN in a key or value, since 0 * NaN is NaN."""
        for store in self._stores():
            store[slot] = 0

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy slot `source` over slot `target`: the last request takes the slot of one that has finished."""
        for store in self._stores():
            store[target] = store[source]


def _end(start: list[int], width: int, branches: Branches | None) -> int:
    """Return one past the last position that a pass writes.

    If only the device knows the size of the trees, this is an upper bound.
    """
    first = [0] * len(start) if branches is None else branches.first
    if isinstance(first, torch.Tensor):
        first = first.tolist() if is_free(first) else [branches.parents.shape[1] - width] * len(start)
    return max(s + f for s, f in zip(start, first)) + width


def kept(x: torch.Tensor, keep: str | list[int] | torch.Tensor) -> torch.Tensor:
    """Return x [n, T, d] if keep is "all", else [n, d], token keep[i] of each row i."""
    if isinstance(keep, str):
        return x
    if isinstance(keep, list) and len(set(keep)) == 1:
        return x[:, keep[0]]
    return x[torch.arange(len(keep), device=x.device), upload(keep, x.device)]

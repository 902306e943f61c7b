# SPDX-License-Identifier: Apache-2.0
"""A key-value cache of fixed slots, one request each, in which rolling back costs nothing.

The cache keeps no lengths. The caller says at which positions a forward pass writes, and a query sees the positions up to
its own. What lies behind a request's accepted tokens is stale: no query reaches it before it is written again. So requests
of one batch accept different lengths, and a rejection neither copies nor recomputes anything.
"""

import torch

__all__ = ["SlotCache"]


class SlotCache:
    """Keys and values of up to `slots` requests with up to `capacity` positions each; layers are allocated when first written."""

    def __init__(self, slots: int, capacity: int):
        self.slots, self.capacity = slots, capacity
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys, values: [slots, capacity, heads, head_dim]

    def begin(self, start: list[int], width: int, slot: int, device=None) -> torch.Tensor:
        """Open a forward pass of `width` tokens a row, row i in slot `slot + i` from position start[i] -> positions [n, width]."""
        self.rows, self.length = slice(slot, slot + len(start)), max(start) + width
        if self.rows.stop > self.slots or self.length > self.capacity:
            raise ValueError(
                f"SlotCache: rows {slot}..{self.rows.stop - 1} up to position {self.length - 1} do not fit "
                f"{self.slots} slots of {self.capacity} positions"
            )
        step = torch.arange(width)
        self.positions = torch.tensor(start)[:, None] + step
        first = torch.tensor([(slot + i) * self.capacity + s for i, s in enumerate(start)])
        self.index = (first[:, None] + step).flatten().to(device)
        self.positions = self.positions.to(device)
        return self.positions

    def visible(self) -> torch.Tensor:
        """[n, 1, width, length] bool: which positions each query of this pass may see."""
        seen = torch.arange(self.length, device=self.positions.device) <= self.positions[..., None]
        return seen[:, None]

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [n, width, heads, head_dim] of this pass; returns all up to its last position, [n, heads, length, head_dim]."""
        if layer == len(self.layers):
            self.layers.append(tuple(x.new_zeros(self.slots, self.capacity, *x.shape[2:]) for x in (keys, values)))
        out = []
        for store, new in zip(self.layers[layer], (keys, values)):
            store.view(-1, *store.shape[2:]).index_copy_(0, self.index, new.flatten(0, 1))
            out.append(store[self.rows, : self.length].transpose(1, 2))
        return out[0], out[1]

    @torch.inference_mode()
    def move(self, source: int, target: int) -> None:
        """Copy slot `source` over slot `target` (the last request takes the place of one that has finished)."""
        for layer in self.layers:
            for store in layer:
                store[target] = store[source]

# SPDX-License-Identifier: Apache-2.0
"""What example calls are made of. Values are drawn on the CPU, the same for every device; shapes depend on V alone."""

from __future__ import annotations

import torch

from specdec_kernels.reference.build_tree import build_tree


class Inputs:
    """Tensors on a device, drawn from a seed.

    V: the vocabulary; 77 is less than a chunk, and odd. pad: entries between rows, so that rows may begin at any
    address.
    """

    def __init__(self, device="cpu", dtype: torch.dtype = torch.float32, V: int = 77, pad: int = 0, seed: int = 0):
        self.device, self.dtype, self.V, self.pad = torch.device(device), dtype, V, pad
        self.generator = torch.Generator().manual_seed(seed)

    def on_device(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.device)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0, 3, generator=self.generator)

    def laid_out(self, x: torch.Tensor) -> torch.Tensor:
        """[..., V] as rows of a model: of its dtype, with padding between them."""
        wide = torch.nn.functional.pad(x, (self.pad, 0)).to(self.dtype)
        return self.on_device(wide)[..., self.pad :]

    def rows(self, *shape: int, more: int = 0) -> torch.Tensor:
        """[*shape, V + more] logits."""
        return self.laid_out(self.normal(*shape, self.V + more))

    def probs(self, *shape: int, more: int = 0) -> torch.Tensor:
        return self.laid_out(self.normal(*shape, self.V + more).softmax(-1))

    def close_rows(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Target and draft as they are in practice: some drafts are accepted, and some are not."""
        target = self.normal(*shape, self.V)
        return self.laid_out(target), self.laid_out(target + self.normal(*shape, self.V) / 4)

    def uniforms(self, *shape: int) -> torch.Tensor:
        return self.on_device(torch.rand(shape, dtype=torch.float64, generator=self.generator, device="cpu"))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return self.on_device(torch.randint(low, high, shape, generator=self.generator, device="cpu"))

    def tensor(self, *values: float, dtype: torch.dtype | None = None) -> torch.Tensor:
        if dtype is None:
            dtype = torch.float32 if any(isinstance(x, float) for x in values) else torch.int64
        return self.on_device(torch.tensor(values, dtype=dtype, device="cpu"))

    def random(self, n: int) -> dict[str, torch.Tensor]:
        """seed and offset of n rows or requests."""
        return {name: self.integers(0, 1 << 40, n) for name in ("seed", "offset")}

    def drawn(self, rows: torch.Tensor) -> torch.Tensor:
        """[*shape] ids, one drawn from each row of logits."""
        weights = (self.on_host(rows).flatten(0, -2)).softmax(-1)
        ids = weights.multinomial(1, generator=self.generator)
        return self.on_device(ids.view(rows.shape[:-1]))

    def on_host(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows as float32 on the CPU; of tensors without values, any."""
        return torch.zeros(rows.shape, dtype=torch.float32, device="cpu") if rows.is_meta else rows.float().cpu()

    def tree(self, B: int, K: int, L: int) -> tuple[torch.Tensor, ...]:
        """build_tree's of likely drafts, as a tuple."""
        ids = torch.randint(0, min(3, self.V), (B, K, L), generator=self.generator, device="cpu")
        return tuple(self.on_device(x) for x in build_tree(ids))

    def node_rows(self, B: int, N: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a tree whose drafted ids, below 3, are likely: walks go down."""
        target, draft = self.normal(2, B, N, self.V)
        for x in (target, draft):
            x[..., :3] += 8
        return self.laid_out(target), self.laid_out(draft)

    def stale(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """x, of padded buffers whose entries from n on are whatever was left there: no laws, no ids."""
        value = float("inf") if x.is_floating_point() else -(1 << 30)
        return torch.cat([x[:n], torch.full_like(x[n:], value)])

    def filters(self, n: int) -> dict[str, torch.Tensor]:
        """Sampling parameters, one for each row."""
        return {
            "temperature": self.tensor(*(0.7, 0.0, 1.3, 1.0)[:n]),
            "top_k": self.tensor(*(5, 40, 0, -1)[:n]),
            "top_p": self.tensor(*(0.9, 1.0, 0.8, 0.5)[:n]),
            "min_p": self.tensor(*(0.05, 0.0, 0.1, 0.02)[:n]),
        }

# SPDX-License-Identifier: Apache-2.0
"""Inputs of example calls. Values are drawn on the CPU and equal on every device; shapes depend on V alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from specdec_kernels.allowed import Allowed
from specdec_kernels.bias import Bias
from specdec_kernels.penalties import Penalties, history
from specdec_kernels.reference.build_tree import build_tree
from specdec_kernels.vocab_map import vocab_map

FILTERS: dict[str, Any] = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "top_n_sigma": 2.5}


class Inputs:
    """A source of tensors on a device, drawn from a seed.

    V: the vocabulary size; 77 is odd and less than a chunk. pad: entries between rows, so that rows may begin at any
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
        """Return x [..., V] as a model's rows: on the device, in the dtype, with padding between rows."""
        wide = torch.nn.functional.pad(x, (self.pad, 0)).to(self.dtype)
        return self.on_device(wide)[..., self.pad :]

    def rows(self, *shape: int, more: int = 0) -> torch.Tensor:
        """Return logits [*shape, V + more]."""
        return self.laid_out(self.normal(*shape, self.V + more))

    def probs(self, *shape: int, more: int = 0) -> torch.Tensor:
        return self.laid_out(self.normal(*shape, self.V + more).softmax(-1))

    def close_rows(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's and the draft's rows, similar as in practice: some drafts are accepted, some are not."""
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
        """Return seed and offset of n rows or requests."""
        return {name: self.integers(0, 1 << 40, n) for name in ("seed", "offset")}

    def keys(self, *shape: int) -> dict[str, torch.Tensor]:
        """Return a seed without offset: noise keys of a race."""
        return {"seed": self.integers(-(1 << 62), 1 << 62, *shape)}

    def drawn(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ids [*shape], one drawn from each row of logits."""
        weights = (self.on_host(rows).flatten(0, -2)).softmax(-1)
        ids = weights.multinomial(1, generator=self.generator)
        return self.on_device(ids.view(rows.shape[:-1]))

    def on_host(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows as float32 on the CPU; zeros for meta tensors."""
        return torch.zeros(rows.shape, dtype=torch.float32, device="cpu") if rows.is_meta else rows.float().cpu()

    def tree(self, B: int, K: int, L: int) -> tuple[torch.Tensor, ...]:
        """Return build_tree's result for likely drafts, as a tuple."""
        ids = torch.randint(0, min(3, self.V), (B, K, L), generator=self.generator, device="cpu")
        return tuple(self.on_device(x) for x in build_tree(ids))

    def node_rows(self, B: int, N: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows in which the drafted ids of `tree` (below 3) are likely, so that drafts are accepted."""
        target, draft = self.normal(2, B, N, self.V)
        for x in (target, draft):
            x[..., :3] += 8
        return self.laid_out(target), self.laid_out(draft)

    def stale(self, x: torch.Tensor, n: int) -> torch.Tensor:
        """Return x as a padded buffer: its entries from n on are invalid rows or ids, as left over from earlier use."""
        value = float("inf") if x.is_floating_point() else -(1 << 30)
        return torch.cat([x[:n], torch.full_like(x[n:], value)])

    def filters(self, n: int) -> dict[str, torch.Tensor]:
        """Return sampling parameters, one for each of n rows."""
        return {
            "temperature": self.tensor(*(0.7, 0.0, 1.3, 1.0)[:n]),
            "top_k": self.tensor(*(5, 40, 0, -1)[:n]),
            "top_p": self.tensor(*(0.9, 1.0, 0.8, 0.5)[:n]),
            "min_p": self.tensor(*(0.05, 0.0, 0.1, 0.02)[:n]),
            "top_n_sigma": self.tensor(*(0.0, 1.0, 1.5, 2.0)[:n]),
        }

    def views(self, n: int, positions: tuple[int, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield views of n rows or requests, as fields of Rows: penalties, a bias, masks, then all of them together.

        Lists are given one for each, or by index in `row`. positions: the shape of `row` for the last bias and mask."""
        some = torch.randint(0, 20, (2, 5, 6), generator=self.generator, device="cpu")  # of which some repeat
        prompts, outputs = (some * self.V // 20).tolist()
        ids, counts = (self.on_device(x) for x in history(prompts, outputs, size=12))
        yield "penalties", {"penalties": Penalties(1.3, 0.5, 0.2, ids[:n], counts[:n])}
        repetition, frequency, presence, row = (
            self.tensor(*x[:n])  # the second one's penalties are off
            for x in ((1.3, 1.0, 0.8, 2.0), (0.5, 0.0, -0.2, 1.0), (0.2, 0.0, 1.5, -1.0), (4, 0, 1, 4))
        )
        by_slot = Penalties(repetition, frequency, presence, ids, counts, row=row)
        yield "penalties by slot", {"penalties": by_slot}
        counts, bits = (
            self.integers(-2, 3, 5, self.V).clamp(min=0).int(),
            self.integers(0, 1 << 20, 5, -(-self.V // 32)),
        )
        tables = Penalties(repetition, frequency, presence, counts=counts, prompt_bits=bits.int(), row=row)
        yield "penalties by tables", {"penalties": tables}
        values = self.normal(5, 4)
        values[:, 1] = -torch.inf
        bias = Bias(self.integers(-1, self.V, 5, 4), self.on_device(values))
        yield "bias", {"bias": Bias(bias.ids[:n].int(), bias.values[:n])}
        bits = torch.randint(-(1 << 31), 1 << 31, (5, -(-self.V // 32)), generator=self.generator, device="cpu")
        allowed = Allowed(self.on_device(bits.int() | 0x11111111))
        yield "masks", {"allowed": Allowed(allowed.bits[:n])}
        rows = [self.integers(-1, 5, *(positions or (n,))) for _ in range(2)]
        yield (
            "all views",
            {"penalties": by_slot, "bias": bias._replace(row=rows[0]), "allowed": allowed._replace(row=rows[1])},
        )

    def listed(self, *shape: int, probs: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield fields of Rows: sparse rows [*shape, k], with pads and repeats, and mapped rows [*shape, Vd], with
        holes and two draft ids for one target id."""
        k = min(6, self.V)
        ids = self.integers(-1, self.V, *shape, k)
        ids[..., 0], ids[..., -1] = 0, ids[..., max(k - 2, 0)]
        rows = self.normal(*shape, k)
        yield "sparse", {"logits": self.laid_out(rows.softmax(-1) if probs else rows), "ids": ids.int()}
        table = torch.randperm(self.V, generator=self.generator, device="cpu")[: -(-self.V // 2)]
        table[-1], table[len(table) // 2] = table[0], -1 if len(table) > 2 else table[0]
        made = vocab_map(table, self.V)
        rows = self.normal(*shape, len(table))
        logits = self.laid_out(rows.softmax(-1) if probs else rows)
        yield "mapped", {"logits": logits, "vocab_map": made._replace(packed=self.on_device(made.packed))}

    def row_views(self, n: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield views of n rows [N, V], some after a window."""
        for name, fields in self.views(n):
            penalties = fields.get("penalties")
            if penalties is not None and penalties.row is not None:
                fields["penalties"] = penalties._replace(drafted=self.integers(-1, self.V, n, 3))
            yield name, fields

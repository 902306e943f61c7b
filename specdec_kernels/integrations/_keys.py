# SPDX-License-Identifier: Apache-2.0
"""Conversion of engines' seeds (one number or one tensor for a batch) to the seeds [B] that the ops take."""

from __future__ import annotations

import torch

from ..seeds import signed

_LEAST, _LARGEST = -(1 << 63), (1 << 63) - 1
_ROW = 40  # the row's index changes the seed from this bit on, so rows with one small seed draw different numbers


def of_rows(seed: int | torch.Tensor, B: int, device: torch.device) -> torch.Tensor:
    """Return [B] int64: seed XOR (b << 40) for row b."""
    rows = torch.arange(B, device=device) << _ROW
    if isinstance(seed, torch.Tensor):
        return rows ^ as_int64(seed)
    return rows ^ signed(seed)


def as_int64(x: torch.Tensor) -> torch.Tensor:
    """Convert to int64; uint64 numbers keep their 64 bits."""
    return x.view(torch.int64) if x.dtype == torch.uint64 else x.to(torch.int64)


def drawn(generator: torch.Generator | None, B: int, device: torch.device) -> torch.Tensor:
    """Draw seeds [B] int64 from the generator, by default the device's own."""
    where = device if generator is None else generator.device
    return torch.randint(_LEAST, _LARGEST, (B,), generator=generator, device=where).to(device)

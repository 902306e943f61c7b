# SPDX-License-Identifier: Apache-2.0
"""The random numbers of a batch: which seed and which offset each request's draws are made of.

A request with a seed draws by its seed and its position in the text, so that it repeats itself whatever shares its
batch. The others draw by a seed of the step from torch's generator, which ranks hold in the same state.
"""

from __future__ import annotations

import torch

from specdec_kernels.integrations import _keys

_LARGEST = (1 << 63) - 1


def keys(
    generators: dict[int, torch.Generator], offset: torch.Tensor | None, B: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """seed and offset [B] int64. ``offset`` holds the requests' positions; where they are not known, a request's own
    generator gives it a number a step."""
    seed = _keys.drawn(None, B, device)
    seeded = {b: generator for b, generator in generators.items() if b < B}
    if offset is None:
        offset = torch.zeros(B, dtype=torch.int64, device=device)
        for b, generator in seeded.items():
            offset[b] = torch.randint(_LARGEST, (), generator=generator, device=generator.device)
    if seeded:
        values = [_keys.signed(generator.initial_seed()) for generator in seeded.values()]
        seed[torch.tensor(list(seeded), dtype=torch.int64, device="cpu").to(device)] = torch.tensor(
            values, dtype=torch.int64, device="cpu"
        ).to(device)
    return seed, offset

# SPDX-License-Identifier: Apache-2.0
"""Seeds and offsets of the random numbers of a batch.

A request with a seed uses its seed and its position in the text, so its tokens are reproducible in any batch. The other
requests use seeds drawn in each step from torch's generator, which has the same state on all ranks.
"""

from __future__ import annotations

import torch

from specdec_kernels.integrations import _keys
from specdec_kernels.integrations.vllm.upload import on

_LARGEST = (1 << 63) - 1


def keys(
    generators: dict[int, torch.Generator], offset: torch.Tensor | None, B: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return seed and offset [B] int64.

    offset: the requests' positions. If it is None, a request with a seed draws its offset from its own generator.
    """
    seed = _keys.drawn(None, B, device)
    seeded = {b: generator for b, generator in generators.items() if b < B}
    if offset is None:
        offset = torch.zeros(B, dtype=torch.int64, device=device)
        for b, generator in seeded.items():
            offset[b] = torch.randint(_LARGEST, (), generator=generator, device=generator.device)
    if seeded:
        values = [_keys.signed(generator.initial_seed()) for generator in seeded.values()]
        seed.index_copy_(0, on(list(seeded), device), on(values, device))
    return seed, offset

# SPDX-License-Identifier: Apache-2.0
"""Filtered rows, and vLLM's sampling masks of them in its V2 model runner."""

import numpy as np
import torch


def step(V, K, seed=0):
    """Return filtered rows of requests with up to K drafts, and the number of tokens that each emitted."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, K + 1, (9,), generator=generator)
    cu = torch.cat([torch.zeros(1), (lengths + 1).cumsum(0)]).to(torch.int32)
    rows = torch.randn(int(cu[-1]), V, generator=generator)
    keep = torch.rand(len(rows), 1, generator=generator)
    rows = rows.where(torch.rand(rows.shape, generator=generator) < keep, -torch.inf)
    rows[torch.arange(len(rows)), torch.randint(V, (len(rows),), generator=generator)] = 1.0
    sampled = (torch.rand(9, generator=generator) * (lengths + 1)).to(torch.int32) + 1
    return rows, cu, sampled


def kept(mask, b, i):
    """Return the ids that row i of request b kept, twice: as vLLM reads the mask, and from its bits."""
    row = b * mask.rows_per_request + i
    n = int(mask.counts[row])
    bits = np.unpackbits(mask.packed_mask[row].numpy(), count=mask.vocab_size, bitorder="little")
    ids = np.flatnonzero(bits).tolist()
    return mask.token_ids[row, :n].tolist() if n <= mask.token_ids.size(1) else ids, ids


def lists(mask):
    """Return the ids that a mask keeps in the row of each emitted token of step(37, 3)."""
    sampled = step(37, 3)[2].tolist()
    return tuple(kept(mask, b, i)[0] for b, n in enumerate(sampled) for i in range(n))

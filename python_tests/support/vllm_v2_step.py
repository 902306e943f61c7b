# SPDX-License-Identifier: Apache-2.0
"""The arguments of a step of vLLM's V2 model runner, whose rows are indexed by slot."""

import torch

V, K = 5, 2
RATES = torch.tensor([0.75, 0.5])

METHODS = {
    "standard": {},
    "block": {"use_block_verification": True},
    "synthetic": {"synthetic_conditional_rates": RATES},
}


def tables():
    """Return the row after each token, of the target and of the draft."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(V, V, generator=generator), torch.randn(V, V, generator=generator)


def step(B, one_hot=False, greedy=False, lengths=None, temperature=0.8, seed=1):
    """Return vLLM's arguments of one step: drafts drawn from rows by slot, and the target's scaled rows.

    The text before is token 0. Slots without a request, and columns after a draft's end, hold NaN.
    """
    generator = torch.Generator().manual_seed(seed)
    target, drafter = tables()
    lengths = torch.full((B,), K) if lengths is None else lengths
    slots = torch.randperm(2 * B, generator=generator)[:B].to(torch.int32)
    store = torch.full((2 * B, K, V), torch.nan)
    tokens = torch.zeros(B, K + 1, dtype=torch.int64)
    for i in range(K):
        rows = drafter[tokens[:, i]]
        q = torch.softmax(rows.double() / temperature, 1)
        drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
        tokens[:, i + 1] = rows.argmax(1) if one_hot or greedy else drawn
        has = lengths > i
        store[slots[has].long(), i] = rows[has]
    inside = torch.arange(K + 1) <= lengths[:, None]
    request = torch.arange(B, dtype=torch.int32)[:, None].expand(B, K + 1)[inside]
    scale = 1.0 if greedy else temperature
    of_slots = torch.full((2 * B,), torch.nan)
    of_slots[slots.long()] = 0.0 if greedy else temperature
    seeds = torch.zeros(2 * B, dtype=torch.int64)
    seeds[slots.long()] = torch.randint(1 << 62, (B,), generator=generator)
    positions = (torch.arange(B)[:, None] * 7 + 1 + torch.arange(K + 1))[inside]
    cu = torch.cat([torch.zeros(1, dtype=torch.int32), (lengths + 1).cumsum(0).to(torch.int32)])
    return {
        "target_logits": target[tokens[inside]] / scale,
        "draft_logits": None if one_hot else store,
        "draft_sampled": tokens[inside].to(torch.int32),
        "cu_num_logits": cu,
        "pos": positions,
        "idx_mapping": slots,
        "expanded_idx_mapping": slots[request.long()],
        "expanded_local_pos": torch.arange(K + 1, dtype=torch.int32).expand(B, K + 1)[inside],
        "temperature": of_slots,
        "seed": seeds,
        "num_speculative_steps": K,
    }

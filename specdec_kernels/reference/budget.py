# SPDX-License-Identifier: Apache-2.0
"""The slots of largest survival in a batch, each request's a prefix."""

import torch


def budget(survival, total, num_drafts=None):
    """survival [B, G] -> how many slots of each request are among the `total` best, [B]. Sorts all slots."""
    B, G = survival.shape
    lengths = [G] * B if num_drafts is None else [min(max(n, 0), G) for n in num_drafts.tolist()]
    slots = []
    for b, row in enumerate(survival.tolist()):
        least = float("inf")
        for i, x in enumerate(row[: lengths[b]]):
            least = min(least, x if x > 0 else 0.0)
            slots.append((-least, i, b))
    kept = torch.zeros(B, dtype=torch.int32, device="cpu")
    for _, _, b in sorted(slots)[:total]:
        kept[b] += 1
    return kept

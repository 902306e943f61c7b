# SPDX-License-Identifier: Apache-2.0
"""The slots of largest survival in a batch. Those of each request are a prefix of its slots."""

import torch


def budget(survival, total, num_drafts=None):
    """Return the number of each request's slots among the `total` best of the batch, [B]. All slots are sorted.

    survival: [B, G].
    """
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

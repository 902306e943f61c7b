# SPDX-License-Identifier: Apache-2.0
"""Counting of the tokens that a step emitted, in the lists that penalties read."""

from collections import Counter

import torch

from ..registry import MAX_VOCABULARY
from .status import HISTORY_FULL, INVALID_ROW

MOST = (1 << 31) - 1


def count_tokens_(ids, counts, tokens, num_tokens=None, row=None):
    """Count the tokens [B, n] into the lists ids and counts [S, H], in place; return status [B].

    A new list holds, in ascending order, the H ids with the largest counts among its old entries and the emitted tokens
    together; of equal counts, the lowest ids. Invalid values do not raise: they set status, as in the op
    on a GPU.
    """
    S, H = ids.shape
    status = torch.zeros(len(tokens), dtype=torch.int32, device="cpu")
    named = set()
    for b, emitted in enumerate(tokens.tolist()):
        s = b if row is None else int(row[b])
        if s == -1:
            continue
        if not 0 <= s < S or s in named or not is_list(ids[s].tolist(), counts[s].tolist()):
            status[b] = INVALID_ROW
            continue
        named.add(s)
        end = emitted.index(-1) if -1 in emitted else len(emitted)
        if num_tokens is not None:
            end = min(max(int(num_tokens[b]), 0), len(emitted))
        count = Counter({v: n for v, n in zip(ids[s].tolist(), counts[s].tolist()) if v >= 0})
        count.update(v for v in emitted[:end] if 0 <= v < MAX_VOCABULARY)
        kept = sorted(sorted(count, key=lambda v: (-min(count[v], MOST), v))[:H])
        status[b] = HISTORY_FULL if len(count) > H else 0
        for j, v in enumerate(kept):
            ids[s, j], counts[s, j] = v, min(count[v], MOST)
    return status


def is_list(ids, counts):
    """Return whether ids ascend, are at least 0 up to padding of -1, and have counts of at least 0."""
    n = sum(v >= 0 for v in ids)
    return (
        ids[n:] == [-1] * (len(ids) - n)
        and all(a < b for a, b in zip(ids[:n], ids[1:n]))
        and all(v >= 0 for v in ids[:n])
        and all(c >= 0 for c in counts[:n])
    )

# SPDX-License-Identifier: Apache-2.0
"""The ids that a row's filters keep: those with z >= cutoff. A greedy row keeps its argmax, an invalid row nothing."""

from typing import NamedTuple

import numpy as np
import torch

from .law import law_of_logits, numpy_rows
from .padded import present
from .row_stats import stats_of
from .rows import rows_of
from .views import seen_rows


class Support(NamedTuple):
    ids: torch.Tensor  # [M, max_kept] int32, ascending, then -1
    counts: torch.Tensor  # [M] int32
    bits: torch.Tensor  # [M, ceil(V / 32)] int32


def support(rows, max_kept, *, num_rows=None):
    """Return ids, counts and bits of rows [N, V], with `row` [M] choosing rows."""
    rows = rows_of(rows)
    N = len(rows.logits)
    rows = seen_rows(rows, present(num_rows, N) if rows.row is None else N)
    z, stats = numpy_rows(rows.logits), stats_of(rows, num_rows if rows.row is None else None)
    chosen = list(range(len(z))) if rows.row is None else rows.row.tolist()
    V = z.shape[1]
    ids = torch.full((len(chosen), max_kept), -1, dtype=torch.int32, device="cpu")
    kept = np.zeros((len(chosen), -(-V // 32) * 32), dtype=bool)
    for i, n in enumerate(chosen[: present(num_rows, len(chosen))]):
        if not 0 <= n < len(z):
            continue
        kept[i, :V] = keeps(z[n], stats[n].tolist())
        lowest = np.flatnonzero(kept[i])[:max_kept]
        ids[i, : len(lowest)] = torch.from_numpy(lowest)
    bits = np.packbits(kept, axis=1, bitorder="little").view("<i4").astype(np.int32)
    return Support(ids, torch.tensor(kept.sum(1), dtype=torch.int32, device="cpu"), torch.from_numpy(bits))


def keeps(z, stats):
    """Return the kept ids as [V] bool."""
    law = law_of_logits(z, stats)
    if not law.valid:
        return np.zeros(len(z), dtype=bool)
    return law.p > 0 if law.greedy else z >= stats[1]

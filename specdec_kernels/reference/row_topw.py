# SPDX-License-Identifier: Apache-2.0
"""The w best one-token continuations of a beam."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .law import law_of_logits, numpy_rows
from .padded import present
from .row_stats import stats_of
from .rows import SAMPLING_FIELDS, rows_of
from .views import seen_rows


class RowTopw(NamedTuple):
    scores: torch.Tensor  # [N, w] float32: sorted after rounding
    ids: torch.Tensor  # [N, w] int64


def row_topw(rows, score, w, *, num_rows=None):
    """Return the w best fl(score + ln p) of each row, largest first, lowest id first among equals, NaN last.

    rows [N, V], score [N]. fl rounds to float32, once.
    """
    given = rows_of(rows)
    given = seen_rows(given, present(num_rows, len(given.logits)))
    plain = given.stats is None and given[SAMPLING_FIELDS] == (None,) * 5
    stats = None if plain else stats_of(given, num_rows)
    rows, score = numpy_rows(given.logits), score.double().tolist()
    out = RowTopw(
        torch.zeros(len(rows), w, dtype=torch.float32, device="cpu"),
        torch.full((len(rows), w), -1, dtype=torch.int64, device="cpu"),
    )
    for i in range(present(num_rows, len(rows))):
        law = law_of_logits(rows[i], plain_stats(rows[i]) if plain else stats[i].tolist())
        worth = np.full(law.p.shape, math.nan)
        if law.valid and score[i] < math.inf:
            log_p = np.array([law.log(v) for v in range(len(worth))])
            worth = score[i] + np.where(np.isnan(log_p), -math.inf, log_p)
        with np.errstate(over="ignore"):
            worth = worth.astype(np.float32)
        best = np.lexsort((np.arange(len(worth)), -worth))[:w]  # a sort puts NaN last
        out.scores[i], out.ids[i] = torch.from_numpy(worth[best]), torch.from_numpy(best)
    return out


def plain_stats(z):
    """Return the stats of the softmax of z. log_norm is computed by a float64 sum and rounded to float32."""
    top = z.max()
    lost = not math.isfinite(top) or np.isnan(z).any()
    log_norm = math.nan if lost else float(np.float32(np.log(np.exp(z - top).sum())))
    return 1.0, -float(np.finfo(np.float32).max), log_norm, float(top)

# SPDX-License-Identifier: Apache-2.0
"""The k most likely ids of a row, and the logprobs and ranks of given ids."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .law import law_of_logits, numpy_rows
from .padded import present
from .row_stats import stats_of
from .rows import rows_of
from .views import seen_rows


class TopLogprobs(NamedTuple):
    ids: torch.Tensor  # [N, k] int64
    logprobs: torch.Tensor  # [N, k] float64
    token_logprobs: torch.Tensor  # [N, m] float64
    token_ranks: torch.Tensor  # [N, m] int64


def top_logprobs(rows, k, tokens=None, *, num_rows=None):
    """Return the k most likely ids of rows [N, V], and logprobs and ranks of tokens [N, m].

    The largest logit comes first, the lowest id among equals, NaN last. The rank of a token is the number of ids whose
    logits are at least its own; 0 for a token outside the row.
    """
    rows = rows_of(rows)
    rows = seen_rows(rows, present(num_rows, len(rows.logits)))
    values, stats = numpy_rows(rows.logits), stats_of(rows, num_rows)
    n, m = len(values), 0 if tokens is None else tokens.shape[1]
    out = TopLogprobs(
        torch.full((n, k), -1, dtype=torch.int64, device="cpu"),
        torch.zeros(n, k, dtype=torch.float64, device="cpu"),
        torch.zeros(n, m, dtype=torch.float64, device="cpu"),
        torch.zeros(n, m, dtype=torch.int64, device="cpu"),
    )
    for i in range(present(num_rows, n)):
        z, logprob = values[i], logprobs_of(values[i], stats[i].tolist())
        best = np.lexsort((np.arange(len(z)), -z))[:k]  # a sort puts NaN last
        out.ids[i] = torch.from_numpy(best)
        out.logprobs[i] = torch.tensor([logprob(v) for v in best], dtype=torch.float64, device="cpu")
        for j in range(m):
            v = int(tokens[i, j])
            inside = 0 <= v < len(z)
            out.token_logprobs[i, j] = logprob(v) if inside else -math.inf
            out.token_ranks[i, j] = int((z >= z[v]).sum()) if inside else 0
    return out


def logprobs_of(z, stats):
    """Return a function id -> ln p(id)."""
    law = law_of_logits(z, stats)
    return law.log if law.valid else lambda v: math.nan

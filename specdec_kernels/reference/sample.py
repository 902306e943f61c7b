# SPDX-License-Identifier: Apache-2.0
"""Draws from row laws by inverse CDF, with or without replacement: the draft side."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .law import draw, law_of_logits, numpy_rows, without
from .padded import first, padded, present
from .row_stats import stats_and_slack
from .rows import Rows, first_sampling, rows_of
from .uniforms import given as clipped
from .uniforms import uniforms as philox_uniforms


class Sampled(NamedTuple):
    tokens: torch.Tensor  # [N, k] int64, -1 where nothing was left to draw
    logprobs: torch.Tensor  # [N, k] float64, ln q(token) under the full law of the row
    rows: Rows  # the logits with their stats [N, 4] float64
    margin: torch.Tensor  # [N] float64


def sample(rows, k=1, replacement=True, *, seed=None, offset=None, slot=0, uniforms=None, num_rows=None):
    given = rows_of(rows)
    N, n = len(given.logits), present(num_rows, len(given.logits))
    logits, stats, seed, offset, slot, uniforms = first(n, given.logits, given.stats, seed, offset, slot, uniforms)
    z = numpy_rows(logits)
    slack = [math.inf] * n
    if stats is None:
        computed, slack = stats_and_slack(z, *first_sampling(given, n))
        stats = torch.tensor(computed, dtype=torch.float64, device="cpu").reshape(n, 4)
    if uniforms is None and seed is None:  # nothing to draw: greedy rows
        u = np.zeros((n, k))
    elif uniforms is None:
        u = philox_uniforms(seed, offset, k, 2, torch.as_tensor(slot, device="cpu").expand(n)).numpy()
    else:
        u = clipped(numpy_rows(uniforms))
    drawn = [draw_row(law_of_logits(row, s), us, replacement) for row, s, us in zip(z, stats.double().tolist(), u)]
    tokens = torch.tensor([d[0] for d in drawn], dtype=torch.int64, device="cpu").reshape(n, k)
    logprobs = torch.tensor([d[1] for d in drawn], dtype=torch.float64, device="cpu").reshape(n, k)
    margin = torch.tensor([min(d[2], s) for d, s in zip(drawn, slack)], dtype=torch.float64, device="cpu")
    rows = Rows(given.logits, stats=padded(stats.double(), N, 0))
    return Sampled(padded(tokens, N, -1), padded(logprobs, N, 0), rows, padded(margin, N, math.inf))


def draw_row(law, u_row, replacement):
    """k draws from one law -> (tokens, logprobs, margin)."""
    tokens, logprobs, margin = [], [], math.inf
    w, err = law.p, law.err
    for u in u_row:
        if not law.valid:
            tokens.append(law.fallback)
            logprobs.append(math.nan)
        elif not (w > 0).any():
            tokens.append(-1)
            logprobs.append(-math.inf)
        else:
            x, near = draw(w, u, err)
            tokens.append(x)
            logprobs.append(law.log(x))
            margin = min(margin, near)
            if not replacement:
                w, err = without(law.p, law.err, law.log_p, tokens)
    return tokens, logprobs, margin

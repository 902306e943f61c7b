# SPDX-License-Identifier: Apache-2.0
"""Draws from row laws by inverse CDF, with or without replacement: the draft side."""

import math
from typing import NamedTuple

import numpy as np
import torch

from .law import draw, law_of_logits, numpy_rows, without
from .padded import first, padded, present
from .row_stats import stats_and_slack
from .uniforms import given
from .uniforms import uniforms as philox_uniforms


class Sampled(NamedTuple):
    tokens: torch.Tensor  # [N, k] int64, -1 where nothing was left to draw
    logprobs: torch.Tensor  # [N, k] float64, ln q(token) under the full law of the row
    stats: torch.Tensor  # [N, 4] float64
    margin: torch.Tensor  # [N] float64


def sample(
    logits,
    stats=None,
    k=1,
    replacement=True,
    *,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    seed=None,
    offset=None,
    slot=0,
    uniforms=None,
    num_rows=None,
):
    N, n = len(logits), present(num_rows, len(logits))
    logits, stats, seed, offset, slot, uniforms = first(n, logits, stats, seed, offset, slot, uniforms)
    rows = numpy_rows(logits)
    slack = [math.inf] * n
    if stats is None:
        computed, slack = stats_and_slack(rows, *first(n, temperature, top_k, top_p, min_p))
        stats = torch.tensor(computed, dtype=torch.float64, device="cpu").reshape(n, 4)
    if uniforms is None and seed is None:  # nothing to draw: greedy rows
        u = np.zeros((n, k))
    elif uniforms is None:
        u = philox_uniforms(seed, offset, k, 2, torch.as_tensor(slot, device="cpu").expand(n)).numpy()
    else:
        u = given(numpy_rows(uniforms))
    drawn = [draw_row(law_of_logits(z, s), u_row, replacement) for z, s, u_row in zip(rows, stats.double().tolist(), u)]
    tokens = torch.tensor([d[0] for d in drawn], dtype=torch.int64, device="cpu").reshape(n, k)
    logprobs = torch.tensor([d[1] for d in drawn], dtype=torch.float64, device="cpu").reshape(n, k)
    margin = torch.tensor([min(d[2], s) for d, s in zip(drawn, slack)], dtype=torch.float64, device="cpu")
    return Sampled(
        padded(tokens, N, -1), padded(logprobs, N, 0), padded(stats.double(), N, 0), padded(margin, N, math.inf)
    )


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

# SPDX-License-Identifier: Apache-2.0
"""Chunks of p and of (p - q)+, whatever the rows are."""

import triton
import triton.language as tl

from .row import clean_p, clean_q, is_greedy, lane_of, load_chunk, load_law, probs


@triton.jit
def p_weights(rows, offset, V, scale, cutoff, log_norm, most, c, alive, PROBS: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk c [ROWS] of the target as it is, and p of it."""
    z = load_chunk(rows, offset, V, c, alive, -float("inf"), WIDTH)
    if PROBS:
        return z, clean_p(z)
    else:
        return z, probs(z, scale, cutoff, log_norm, most)


@triton.jit
def subtract(w, rows, offset, V, stats, index, d, c, alive, PROBS: tl.constexpr, WIDTH: tl.constexpr):
    """(p - q)+ of chunk c, q the draft's law; one-hot at d where it has no rows."""
    lane = tl.arange(0, WIDTH)[None, :]
    if rows is None:
        return tl.where(lane == lane_of(d, c)[:, None], 0.0, w)
    elif PROBS:
        return tl.maximum(w - clean_q(load_chunk(rows, offset, V, c, alive, 0.0, WIDTH)), 0.0)
    else:
        scale, cutoff, log_norm, most = load_law(stats, index, alive)
        greedy = is_greedy(scale, log_norm, V)
        z = load_chunk(rows, offset, V, c, alive & ~greedy, -float("inf"), WIDTH)
        q = tl.where(greedy[:, None], 0.0, probs(z, scale, cutoff, log_norm, most))
        hot = tl.where(greedy, log_norm, -1.0).to(tl.int64)
        return tl.where(lane == lane_of(hot, c)[:, None], 0.0, tl.maximum(w - clean_q(q), 0.0))

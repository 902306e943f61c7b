# SPDX-License-Identifier: Apache-2.0
"""The two rows of one position of one request as laws, entry by entry and chunk by chunk (csrc/core/{row,side}.h).

A program serves one request; it reads a row as tiles of [TOGETHER, WIDTH], TOGETHER chunks at once.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..accept import is_draft_prob
from ..chain.draft_test import row_of
from .row import CHUNK, clean_p, clean_prob, clean_q, is_greedy, lane_of, load_chunk, load_law, log_prob, probs


class Side(NamedTuple):
    rows: Any  # None: one-hot drafts
    V: Any
    batch_stride: Any
    row_stride: Any
    extra: Any
    stats: Any
    PROBS: Any


class Sizes(NamedTuple):
    TOGETHER: Any
    WIDTH: Any
    CHUNKS: Any


class Dist(NamedTuple):
    """A law: of the row at `offset` where `row` is set, one-hot where `hot` is not negative, else nothing."""

    row: Any
    offset: Any
    hot: Any
    scale: Any
    cutoff: Any
    log_norm: Any
    most: Any


@triton.jit
def dist(side, drafts, x, i, there, token):
    """The law of row i of a request where it is `there`, else one-hot at `token`."""
    hot = tl.where(there, -1, token)
    one = tl.full([], 1.0, tl.float32)
    if side.rows is None:
        return Dist(there, i * 0, hot, one, one, one, one)
    else:
        index, offset = row_of(
            x.b, x.start, i, drafts.G, side.extra, side.batch_stride, side.row_stride, drafts.cu_draft is not None
        )
        if side.PROBS:
            return Dist(there, offset, hot, one, one, one, one)
        else:
            scale, cutoff, log_norm, most = load_law(side.stats, index, there)
            greedy = there & is_greedy(scale, log_norm, side.V)
            return Dist(there, offset, tl.where(greedy, tl.where(greedy, log_norm, 0.0).to(tl.int64), hot), scale, cutoff, log_norm, most)


@triton.jit
def defines_distribution(d):
    """Of probabilities it is not known before they are summed."""
    return d.log_norm == d.log_norm


@triton.jit
def entry(side, d, v):
    """The row as it is at v; NaN outside it."""
    if side.rows is None:
        return tl.full([], float("nan"), tl.float32)
    else:
        return tl.load(side.rows + d.offset + v, mask=d.row & (v >= 0) & (v < side.V), other=float("nan")).to(tl.float32)


@triton.jit
def log_prob_at(side, d, v, z):
    """ln p of v, whose entry is z."""
    if side.PROBS:
        x = tl.log(tl.where(v < side.V, clean_prob(z), 0.0).to(tl.float64))
    else:
        x = tl.where(d.row & (v < side.V), log_prob(z, d.scale, d.cutoff, d.log_norm, d.most), -float("inf"))
    return tl.where(d.hot >= 0, tl.where(v == d.hot, 0.0, -float("inf")), x)


@triton.jit
def prob_at(side, d, v, z):
    if side.PROBS:
        p = tl.where(v < side.V, clean_prob(z), 0.0).to(tl.float64)
        return tl.where(d.hot >= 0, tl.where(v == d.hot, 1.0, 0.0), p)
    else:
        return tl.exp(log_prob_at(side, d, v, z))


@triton.jit
def draft_prob(q):
    """What a residual takes away: of what is not a probability nothing, of a rounded one one."""
    return tl.where(is_draft_prob(q), tl.minimum(q, 1.0), 0.0)


@triton.jit
def each(x, c):
    return tl.full(c.shape, x, x.dtype)


@triton.jit
def chunks_of(V):
    return ((V + (CHUNK - 1)) // CHUNK).to(tl.int32)


@triton.jit
def load(side, d, c, alive, other, S):
    """Chunks c [TOGETHER] of a row as they are."""
    return load_chunk(side.rows, each(d.offset, c), side.V, c, each((alive & d.row).to(tl.int32), c) > 0, other, S.WIDTH)


@triton.jit
def law_chunk(side, d, z, c, DRAFT: tl.constexpr, S):
    """Probabilities of chunks c, whose entries are z; of a draft as a residual sees them."""
    if side.PROBS:
        w = clean_q(z) if DRAFT else clean_p(z)
    else:
        w = probs(z, each(d.scale, c), each(d.cutoff, c), each(d.log_norm, c), each(d.most, c))
        if DRAFT:
            w = clean_q(w)
    one = tl.where(tl.arange(0, S.WIDTH)[None, :] == lane_of(each(d.hot, c), c)[:, None], 1.0, 0.0)
    return tl.where(d.hot >= 0, one, w)


@triton.jit
def draft_chunk(side, d, c, alive, S):
    """The draft's entries and probabilities of chunks c; of a token without a row these are one."""
    if side.rows is None:
        one = tl.where(tl.arange(0, S.WIDTH)[None, :] == lane_of(each(d.hot, c), c)[:, None], 1.0, 0.0)
        return one, one
    else:
        z = load(side, d, c, alive, -float("inf"), S)
        w = law_chunk(side, d, z, c, True, S)
        return tl.where(d.row, z, w), w

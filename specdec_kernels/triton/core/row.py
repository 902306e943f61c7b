# SPDX-License-Identifier: Apache-2.0
"""Rows, laws and chunks as Triton functions: csrc/core/row.h for a block of rows at once.

A program serves ROWS rows; on a GPU that is one row wherever rows are long. A chunk is a tile [ROWS, WIDTH], and WIDTH
is 1024 unless the whole row is shorter. Every sum over V is a sum of chunks, so its bits depend on the row alone.
"""

import triton
import triton.language as tl

CHUNK = tl.constexpr(1024)
LOG2E = tl.constexpr(1.4426950408889634)
FLT_MAX = tl.constexpr(3.4028234663852886e38)
FLT_MIN = tl.constexpr(2.0**-126)
ENOUGH = tl.constexpr(2.0**-60)  # what is left of a law is measured anew once it weighs less: csrc/core/residual.h
LEAST_EXPONENT = tl.constexpr(-126.0)  # a logit that weighs less than 2^-126 of the largest one weighs nothing, on every backend


@triton.jit
def span(cu_draft, b, G, D, exists):
    """Where request b's drafts start, and how many they are, inside [0, D] and [0, G] whatever cu_draft holds."""
    start = tl.load(cu_draft + b, mask=exists, other=0).to(tl.int64)
    end = tl.load(cu_draft + b + 1, mask=exists, other=0).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), D)
    g = tl.minimum(tl.maximum(end - start, 0), tl.minimum(D - start, G))
    return start, g.to(tl.int32)


@triton.jit
def locate(slot, B, G, bonus, extra, batch_stride, row_stride, cu_draft, D):
    """Slot of a grid over requests and their G + bonus positions -> request, index of the row, its offset, whether it exists.

    A request's rows are laid out G + extra at a time, or one after the other as cu_draft tells.
    """
    positions = G + bonus
    b = slot // positions
    i = slot - b * positions
    exists = slot < B * positions
    if cu_draft is None:
        index = b.to(tl.int64) * (G + extra) + i
        offset = b.to(tl.int64) * batch_stride + i.to(tl.int64) * row_stride
    else:
        start, g = span(cu_draft, b, G, D, exists)
        index = start + b.to(tl.int64) * extra + i
        offset = index * row_stride
        exists = exists & (i < g + bonus)
    return b, index, offset, exists


@triton.jit
def load_chunk(rows, offset, V, c, alive, other, WIDTH: tl.constexpr):
    """Chunk c [ROWS] of the rows at `offset` [ROWS] -> [ROWS, WIDTH] float32, `other` outside the row."""
    lane = tl.arange(0, WIDTH)
    begin = c * CHUNK
    inside = (lane[None, :] < (V - begin)[:, None]) & alive[:, None]
    return tl.load(rows + (offset + begin)[:, None] + lane[None, :], mask=inside, other=other).to(tl.float32)


@triton.jit
def lane_of(id, c):
    """The lane of a token in chunk c [ROWS]; -1 where it lies in another one."""
    begin = c.to(tl.int64) * CHUNK
    return tl.where((id >= begin) & (id < begin + CHUNK), id - begin, -1).to(tl.int32)


@triton.jit
def scaled(z, most, scale):
    """(z - most) * scale, by halves: the difference of two finite logits may overflow."""
    return (z * 0.5 - most * 0.5) * (scale * 2)


@triton.jit
def finite_max(z):
    return tl.max(tl.where(z < float("inf"), z, -float("inf")), 1)


@triton.jit
def weight_of(y):
    """2^y, 0 below LEAST_EXPONENT."""
    return tl.where(y < LEAST_EXPONENT, 0.0, tl.exp2(y))


@triton.jit
def chunk_sum(z, scale, cutoff):
    """The largest finite logit of a chunk, and sum of exp((z - it) * scale) over z >= cutoff; no finite sum if the chunk holds
    NaN or +inf."""
    most = finite_max(z)
    e = weight_of(scaled(z, most[:, None], (scale * LOG2E)[:, None]))
    return most, tl.sum(tl.where(z < cutoff[:, None], 0.0, e), 1)


@triton.jit
def first_chunk_with(maxes, at, chunks, most, alive, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    """The first chunk whose maximum is `most` [ROWS]; 0 where nothing is finite."""
    first = tl.full([ROWS], 2147483647, tl.int32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)
        m = tl.load(maxes + at[:, None] + c[None, :], mask=(c < chunks)[None, :] & alive[:, None], other=float("nan"))
        first = tl.minimum(first, tl.min(tl.where(m == most[:, None], c[None, :], 2147483647), 1))
    return tl.where((first < chunks) & (most > -float("inf")), first, 0)


@triton.jit
def first_lane_with(z, most, WIDTH: tl.constexpr):
    """The first lane of a chunk that holds `most` [ROWS]; 0 where nothing is finite."""
    lane = tl.arange(0, WIDTH)[None, :]
    first = tl.min(tl.where(z == most[:, None], lane, WIDTH), 1)
    return tl.where((first < WIDTH) & (most > -float("inf")), first, 0)


@triton.jit
def is_greedy(scale, log_norm, V):
    """A greedy row is one-hot at its argmax, which stands in place of log_norm."""
    return (scale == float("inf")) & (log_norm >= 0) & (log_norm < V)


@triton.jit
def load_law(stats, index, mask):
    """scale, cutoff, log_norm, max of the rows at `index`."""
    at = stats + index * 4
    scale = tl.load(at, mask=mask, other=1.0)
    cutoff = tl.load(at + 1, mask=mask, other=0.0)
    log_norm = tl.load(at + 2, mask=mask, other=0.0)
    return scale, cutoff, log_norm, tl.load(at + 3, mask=mask, other=0.0)


@triton.jit
def log_prob(z, scale, cutoff, log_norm, most):
    """ln p of one logit, in float64."""
    x = (z.to(tl.float64) - most.to(tl.float64)) * scale.to(tl.float64) - log_norm.to(tl.float64)
    return tl.where(z >= cutoff, x, -float("inf"))


@triton.jit
def probs(z, scale, cutoff, log_norm, most):
    """p of a chunk of logits, in float32."""
    e = weight_of(scaled(z, most[:, None], (scale * LOG2E)[:, None])) * tl.exp2(-log_norm * LOG2E)[:, None]
    return tl.where(z >= cutoff[:, None], e, 0.0)


@triton.jit
def clean_prob(z):
    """An entry of a probability row: what is negative counts 0, and what is not finite is none."""
    return tl.where(z > 0, tl.where(z < float("inf"), z, float("nan")), tl.where(z <= 0, 0.0, z))


@triton.jit
def clean_p(z):
    """Probabilities as weights: what is no finite positive number weighs nothing."""
    return tl.where((z > 0.0) & (z < float("inf")), z, 0.0)


@triton.jit
def clean_q(q):
    """A q outside [0, 1 + 1e-3] counts as 0, one above 1 as 1."""
    return tl.where((q >= 0.0) & (q <= 1.001), tl.minimum(q, 1.0), 0.0)


@triton.jit
def is_bad(z):
    """Whether a chunk of probabilities holds NaN or +inf."""
    return tl.max(tl.where(z < float("inf"), 0, 1), 1) > 0

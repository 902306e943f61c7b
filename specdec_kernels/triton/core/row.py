# SPDX-License-Identifier: Apache-2.0
"""Rows, their stats (four floats) and their chunks, for a block of rows (csrc/core/{row,rows,views}.h).

A program serves ROWS rows; on a GPU that is one row if rows are long. A chunk is a tile [ROWS, WIDTH]. WIDTH is 1024
or, if rows have at most 512 entries, a smaller power of two. A program that reads a row by itself reads TOGETHER chunks
of it at once, as a tile [ROWS * TOGETHER, WIDTH]. Sums over V go chunk by chunk, so their bits depend on the row alone.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, hidden_zero, put_value, stored_chunk, stored_entry
from .views import seen, seen_chunk, seen_entry

CHUNK = tl.constexpr(1024)
LOG2E = tl.constexpr(1.4426950408889634)
FLT_MAX = tl.constexpr(3.4028234663852886e38)
FLT_MIN = tl.constexpr(2.0**-126)
IDS_END = tl.constexpr(1 << 24)  # no vocabulary is larger
ENOUGH = tl.constexpr(2.0**-60)  # a rest that weighs less is summed again: kEnough of csrc/core/residual.h
LEAST_EXPONENT = tl.constexpr(
    -126.0
)  # on every backend, a logit whose weight is below 2^-126 of the largest logit's has weight 0


class Sizes(NamedTuple):
    """The sizes of a program's tiles, which are constants of its kernel."""

    ROWS: Any
    WIDTH: Any
    CHUNKS: Any = 1  # chunk sums that are read together
    TOGETHER: Any = 1
    FEW: Any = 1  # logits that a filter holds side by side
    TILE: Any = 1  # nodes or drafts of a tree that are read together


class Sampling(NamedTuple):
    """The sampling parameters of requests, as Values."""

    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    top_n_sigma: Any

    def given(self) -> bool:
        return any(values.data is not None for values in self)

    def filters(self) -> bool:
        return any(values.data is not None for values in self[1:])


class Scratch(NamedTuple):
    """Memory for computing stats: the largest finite logit and the sum of each chunk, and lists for the filters."""

    maxes: Any  # [rows, chunks]; None: there is none
    sums: Any
    listed: Any = None  # [slots, chunks]: indices of chunks that a filter reads again; None: no row has a filter
    few: Any = None  # [slots, FEW]: candidate logits


class Rows(NamedTuple):
    """The rows of one side, target or draft: logits or probabilities.

    A part that is a tuple, such as `scratch`, is never None. If it is missing, its fields show that, since Triton 3.6
    cannot compare a tuple with None."""

    data: Any  # None: only one-hot drafts
    V: Any
    batch_stride: Any  # 0 if the rows of all requests are indexed together
    row_stride: Any
    extra: Any  # whether each request has a position after its drafts
    stats: Any  # [rows, 4], or None
    sampling: Any  # Sampling, where there are no stats
    scratch: Any
    PROBS: Any
    store: Any  # Store
    views: Any  # Views
    ids: Any  # EntryIds. With them, V is the number of entries.


class RowStats(NamedTuple):
    scale: Any
    cutoff: Any
    log_norm: Any
    max: Any


class Dist(NamedTuple):
    """A distribution: one-hot at `hot` if that is not negative, else a row of the side. No distribution if `hot` and
    `row` are both negative."""

    row: Any
    hot: Any
    stats: Any


@triton.jit
def each(x, S):
    """Repeat x [ROWS] to [ROWS * TOGETHER]: once for each chunk of a row that is read at once."""
    if S.TOGETHER == 1:
        return x
    else:
        return tl.reshape(tl.broadcast_to(x[:, None], [S.ROWS, S.TOGETHER]), [S.ROWS * S.TOGETHER])


@triton.jit
def by_row(x, S):
    """Reshape x from [ROWS * TOGETHER] to [ROWS, TOGETHER]."""
    return tl.reshape(x, [S.ROWS, S.TOGETHER])


@triton.jit
def before_each(count, found, S):
    """Return for each chunk the row's count [ROWS] plus `found` [ROWS, TOGETHER] of the chunks before it, flat like
    the result of each()."""
    tl.static_assert(S.TOGETHER <= 2)  # Triton 3.6 cannot compile a narrow running sum; two chunks do not need one
    others = tl.sum(found, 1)[:, None] - found
    before = count[:, None] + tl.where(tl.arange(0, S.TOGETHER)[None, :] > 0, others, 0)
    return tl.reshape(before, [S.ROWS * S.TOGETHER])


@triton.jit
def sum_of(tile, S):
    """Return the sum of each row's tile. The sums of its chunks are added in float64."""
    return tl.sum(by_row(tl.sum(tile, 1).to(tl.float64), S), 1)


@triton.jit
def max_of(x, S):
    """Return the largest value of each row; x has one value per chunk."""
    return tl.max(by_row(x, S), 1)


@triton.jit
def each_request(S):
    """Return the request of each row. It comes from program_id, not memory, so Triton carries the strides' divisibility
    into the offsets and loads stay 16 bytes wide."""
    return tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS * S.TOGETHER) // S.TOGETHER


@triton.jit
def chunks_from(begin, S):
    return begin + tl.arange(0, S.ROWS * S.TOGETHER) % S.TOGETHER


@triton.jit
def chunks_of(side):
    return tl.cdiv(side.V + hidden_zero(), CHUNK)  # Triton 3.6 cannot compile a loop that it knows will run once


@triton.jit
def vocabulary(side):
    """Return the size of a side's vocabulary; if its rows have ids of their own, an upper bound."""
    if side.ids.numbers is None:
        return side.V
    else:
        return tl.full([], IDS_END, tl.int32)


@triton.jit
def widest(target, draft):
    """Return the size of the larger of the two vocabularies."""
    if draft.data is None:
        return target.V
    else:
        return tl.maximum(target.V, vocabulary(draft))


@triton.jit
def row_seen(side, n):
    """Return the row index of request n, which has only one row."""
    return seen(side.views, n * 0, n * 0)


@triton.jit
def load_chunk(side, b, row, c, alive, other, S):
    """Return chunks c [ROWS] of rows with the views of requests b: float32 [ROWS, WIDTH], `other` outside the row."""
    begin = c * CHUNK
    inside = (tl.arange(0, S.WIDTH)[None, :] < (side.V - begin)[:, None]) & alive[:, None]
    z = stored_chunk(side, b, row, begin, inside, other, S)
    if not side.views.GIVEN:
        return z
    else:
        begin = begin.to(tl.int64)
        end = tl.minimum(begin + S.WIDTH, side.V)
        return seen_chunk(side, b, row, begin, end, alive & (row >= 0), z)


@triton.jit
def load_entry(side, b, row, v, mask, other):
    """Return the entries v of rows with the views of requests b. Where `mask` is set, v must be inside the row."""
    z = stored_entry(side, b, row, v, mask, other)
    if not side.views.GIVEN:
        return z
    else:
        return seen_entry(side.views, b, row, v, mask, z)


@triton.jit
def lane_of(id, c):
    """Return the lane of a token in chunk c [ROWS]; -1 if it is in another chunk."""
    begin = c.to(tl.int64) * CHUNK
    return tl.where((id >= begin) & (id < begin + CHUNK), id - begin, -1).to(tl.int32)


@triton.jit
def scaled(z, most, scale):
    """Return (z - most) * scale, computed with halves, since the difference of two finite logits may overflow."""
    return (z * 0.5 - most * 0.5) * (scale * 2)


@triton.jit
def finite_max(z):
    return tl.max(tl.where(z < float("inf"), z, -float("inf")), 1)


@triton.jit
def weight_of(y):
    """Return 2^y; 0 for y below LEAST_EXPONENT."""
    return tl.where(y < LEAST_EXPONENT, 0.0, tl.exp2(y))


@triton.jit
def chunk_sum(z, scale, cutoff):
    """Return the largest finite logit m of a chunk, and the sum of exp((z - m) * scale) over z >= cutoff. The sum is
    not finite if the chunk holds NaN or +inf."""
    most = finite_max(z)
    e = weight_of(scaled(z, most[:, None], (scale * LOG2E)[:, None]))
    return most, tl.sum(tl.where(z < cutoff[:, None], 0.0, e), 1)


@triton.jit
def is_greedy(stats, V):
    """Return whether a row is greedy: one-hot at its argmax, which is stored in place of log_norm."""
    return (stats.scale == float("inf")) & (stats.log_norm >= 0) & (stats.log_norm < V)


@triton.jit
def load_stats(stats, index, mask):
    """Return the four floats of the rows at `index`."""
    at = stats + index * 4
    scale = get_value(at, mask, 1.0)
    cutoff = get_value(at + 1, mask, 0.0)
    log_norm = get_value(at + 2, mask, 0.0)
    return RowStats(scale, cutoff, log_norm, get_value(at + 3, mask, 0.0))


@triton.jit
def store_stats(out, index, stats, mask):
    at = out + index * 4
    put_value(at, stats.scale, mask)
    put_value(at + 1, stats.cutoff, mask)
    put_value(at + 2, stats.log_norm, mask)
    put_value(at + 3, stats.max, mask)


@triton.jit
def log_prob(z, stats):
    """Return ln p of logits, in float64. The stats broadcast to them."""
    x = (z.to(tl.float64) - stats.max.to(tl.float64)) * stats.scale.to(tl.float64) - stats.log_norm.to(tl.float64)
    return tl.where(z >= stats.cutoff, x, -float("inf"))


@triton.jit
def probs(z, stats):
    """Return p of a chunk of logits, in float32."""
    e = weight_of(scaled(z, stats.max[:, None], (stats.scale * LOG2E)[:, None]))
    return tl.where(z >= stats.cutoff[:, None], e * tl.exp2(-stats.log_norm * LOG2E)[:, None], 0.0)


@triton.jit
def clean_prob(z):
    """Return an entry of a probability row: 0 if it is negative, NaN if it is +inf or NaN."""
    return tl.where(z > 0, tl.where(z < float("inf"), z, float("nan")), tl.where(z <= 0, 0.0, z))


@triton.jit
def clean_p(z):
    """Return probabilities as weights: 0 for entries that are not positive and finite."""
    return tl.where((z > 0.0) & (z < float("inf")), z, 0.0)


@triton.jit
def clean_q(q):
    """Return q as a weight, at most 1; 0 for q outside [0, 1 + 1e-3]."""
    return tl.where((q >= 0.0) & (q <= 1.001), tl.minimum(q, 1.0), 0.0)


@triton.jit
def is_bad(z):
    """Return whether a chunk of probabilities holds NaN or +inf."""
    return tl.max(tl.where(z < float("inf"), 0, 1), 1) > 0

# SPDX-License-Identifier: Apache-2.0
"""The rows of one side as distributions, by entry and by chunk (csrc/core/rows.h, and Dist in csrc/core/row.h)."""

import triton
import triton.language as tl

from .ids import ENTRY, PROB, WEIGHT, add_up, chunk_places, places_of
from .row import (
    IDS_END,
    Dist,
    RowStats,
    clean_p,
    clean_prob,
    clean_q,
    each,
    is_greedy,
    lane_of,
    load_chunk,
    load_entry,
    load_stats,
    log_prob,
    probs,
    vocabulary,
)

MAX_PROB = tl.constexpr(1.0 + 1e-3)  # rounding may put a probability slightly above one


@triton.jit
def no_stats(like):
    one = tl.full(like.shape, 1.0, tl.float32)
    return RowStats(one, one, one, one)


@triton.jit
def one_hot(id):
    return Dist(id * 0 - 1, id, no_stats(id))


@triton.jit
def from_stats(side, row, stats, there):
    """Return the distributions of rows with these stats; no distribution where `there` is not set."""
    is_hot = there & is_greedy(stats, vocabulary(side))
    if side.PROBS:
        is_hot &= stats.max > 0
    hot = tl.where(is_hot, tl.where(is_hot, stats.log_norm, 0.0).to(tl.int64), row * 0 - 1)
    return Dist(tl.where(there, row, -1), hot, stats)


@triton.jit
def given_dist(side, row, index, there):
    """Return the distributions of rows of probabilities, or of logits whose stats are at `index`."""
    if side.PROBS:
        return from_stats(side, row, no_stats(row), there)
    else:
        return from_stats(side, row, load_stats(side.stats, index, there), there)


@triton.jit
def choose(mask, a, b):
    stats = RowStats(
        tl.where(mask, a.stats.scale, b.stats.scale),
        tl.where(mask, a.stats.cutoff, b.stats.cutoff),
        tl.where(mask, a.stats.log_norm, b.stats.log_norm),
        tl.where(mask, a.stats.max, b.stats.max),
    )
    return Dist(tl.where(mask, a.row, b.row), tl.where(mask, a.hot, b.hot), stats)


@triton.jit
def is_something(d):
    return (d.row >= 0) | (d.hot >= 0)


@triton.jit
def is_valid(side, d):
    """Return whether a distribution is valid. A row of probabilities counts as valid until its entries are summed."""
    if side.PROBS:
        return is_something(d)
    else:
        return is_something(d) & (d.stats.log_norm == d.stats.log_norm)


@triton.jit
def each_dist(d, S):
    stats = RowStats(each(d.stats.scale, S), each(d.stats.cutoff, S), each(d.stats.log_norm, S), each(d.stats.max, S))
    return Dist(each(d.row, S), each(d.hot, S), stats)


@triton.jit
def prob(side, b, d, v, mask):
    """Return p of ids v, and ln p, in float64."""
    is_hot = (d.hot >= 0) & (d.hot == v)
    if side.data is None:
        return tl.where(is_hot, 1.0, 0.0).to(tl.float64), tl.where(is_hot, 0.0, -float("inf")).to(tl.float64)
    elif side.ids.numbers is not None:
        inside = mask & (d.row >= 0) & (d.hot < 0) & (v >= 0) & (v < IDS_END)
        p = add_up(side, d.stats, places_of(side, b, d.row, v, inside), PROB)
        return tl.where(is_hot, 1.0, p), tl.where(is_hot, 0.0, tl.log(p))
    else:
        inside = mask & (d.row >= 0) & (d.hot < 0) & (v >= 0) & (v < side.V)
        z = load_entry(side, b, d.row, v, inside, 0.0)
        if side.PROBS:
            p = tl.where(inside, clean_prob(z), 0.0).to(tl.float64)
            x = tl.log(p)
        else:
            x = tl.where(inside, log_prob(z, d.stats), -float("inf"))
            p = tl.exp(x)
        return tl.where(is_hot, 1.0, p), tl.where(is_hot, 0.0, x)


@triton.jit
def entry(side, b, d, v, mask):
    """Return the entries of a distribution's row at ids v. Outside the row they are NaN; in rows with ids of their own,
    -inf (0 in rows of probabilities). Without a row they are 1 at the token of the distribution, 0 elsewhere."""
    one = tl.where(d.hot == v, 1.0, 0.0)
    if side.data is None:
        return one
    else:
        inside = mask & (d.row >= 0) & (v >= 0)
        if side.ids.numbers is None:
            z = load_entry(side, b, d.row, v, inside & (v < side.V), float("nan"))
        else:
            z = add_up(side, None, places_of(side, b, d.row, v, inside & (v < IDS_END)), ENTRY)
        return tl.where(d.row >= 0, z, one)


@triton.jit
def entries(side, b, d, c, alive, DRAFT: tl.constexpr, S):
    """Return chunks c of a distribution's row: the entries, and the probabilities (of a draft: as a residual subtracts
    them).

    Without a row, both are the one-hot probabilities."""
    one = tl.where(tl.arange(0, S.WIDTH)[None, :] == lane_of(d.hot, c)[:, None], 1.0, 0.0)
    if side.data is None:
        return one, one
    else:
        if side.ids.numbers is None:
            z = load_chunk(side, b, d.row, c, alive & (d.row >= 0), -float("inf"), S)
            w = z if side.PROBS else probs(z, d.stats)
        else:
            places = chunk_places(side, b, d.row, c, alive, S)
            z = add_up(side, None, places, ENTRY)
            w = z if side.PROBS else add_up(side, d.stats, places, WEIGHT)
        if DRAFT:
            w = clean_q(w)
        elif side.PROBS:
            w = clean_p(w)
        return tl.where((d.row >= 0)[:, None], z, one), tl.where(((d.hot >= 0) | (d.row < 0))[:, None], one, w)


@triton.jit
def without(w, q, x, c, S):
    """Return (w - q)+ of chunk c; x has q's probabilities there. If q is one-hot, its token gets 0."""
    lane = tl.arange(0, S.WIDTH)[None, :]
    return tl.where(lane == lane_of(q.hot, c)[:, None], 0.0, tl.maximum(w - x, 0.0))


@triton.jit
def is_draft_prob(q):
    """Return whether q is a probability above 0. If not, the drafted token cannot have been drawn from q."""
    return (q > 0) & (q <= tl.full(q.shape, MAX_PROB, tl.float64))


@triton.jit
def draft_prob(q):
    """Return q as a residual subtracts it: 0 if it is not a probability, 1 if rounding made it larger than 1."""
    return tl.where(is_draft_prob(q), tl.minimum(q, 1.0), 0.0)


@triton.jit
def accept_test(p, q, u):
    """Accept with probability min(1, p / q), in float64, without division. NaN compares false and rejects."""
    return is_draft_prob(q) & (u * tl.where(q < 1, q, 1.0) < p)

# SPDX-License-Identifier: Apache-2.0
"""The best ids of rows, in order (csrc/core/order.h, csrc/cuda/best_ids.cuh).

A program per block of rows lists a few candidates of each, and torch sorts them. The worth of an entry is its logit or,
with `score` [rows], the beam's score plus ln p. Worth never falls as the logit grows, which the search relies on.
"""

import torch
import triton
import triton.language as tl

from . import launch
from .filters import from_ordered, middle, ordered
from .memory import is_present, some
from .row import (
    CHUNK,
    RowStats,
    before_each,
    by_row,
    chunks_from,
    chunks_of,
    each,
    is_greedy,
    load_chunk,
    load_stats,
    log_prob,
    row_seen,
)

LAST_ID = tl.constexpr((1 << 24) - 1)
NO_ID = tl.constexpr(-(1 << 63))  # an order below that of every id
LARGEST = tl.constexpr(0x7F800000 << 24 | (1 << 24) - 1)  # the order of +inf at id 0


@triton.jit
def order_of(worth, id):
    """Return a number by which ids are sorted, largest first: by larger worth, then by lower id, NaN last.

    No two ids of a row have the same order."""
    key = tl.where(worth == worth, ordered(worth + 0.0), -2147483648).to(tl.int64)
    return key << 24 | LAST_ID - id


@triton.jit
def id_of_order(order):
    return LAST_ID - (order & LAST_ID)


@triton.jit
def worth_of_order(order):
    return from_ordered((order >> 24).to(tl.int32))


@triton.jit
def worth_of(rows, score, n, z, exists):
    """Return the worth of entries z [X, Y] of the rows n [X]: score + ln p, computed in float64; z without a score."""
    if score is None:
        return z
    else:
        stats = load_stats(rows.stats, n, exists)
        columns = RowStats(stats.scale[:, None], stats.cutoff[:, None], stats.log_norm[:, None], stats.max[:, None])
        own = tl.load(score + n, mask=exists, other=0.0).to(tl.float64)
        return (own[:, None] + log_prob(z, columns)).to(tl.float32)


@triton.jit
def hot_of(rows, n, exists):
    """Return the argmax of a greedy row; -1 for other rows."""
    stats = load_stats(rows.stats, n, exists)
    hot = is_greedy(stats, rows.V)
    return tl.where(hot, tl.where(hot, stats.log_norm, 0.0).to(tl.int64), -1)


@triton.jit
def score_of(rows, score, n, exists):
    """Return the score of each row's beam; NaN if the beam or the row is invalid."""
    stats = load_stats(rows.stats, n, exists)
    inf = float("inf")
    law = (stats.scale > 0) & (stats.scale < inf) & (tl.abs(stats.log_norm) < inf) & (tl.abs(stats.max) < inf)
    own = tl.load(score + n, mask=exists, other=0.0)
    return tl.where((own < inf) & (law | (hot_of(rows, n, exists) >= 0)), own, float("nan"))


@triton.jit
def is_flat(rows, score, n, exists):
    """Return whether a row needs no search: all its ids, except a greedy row's argmax, are worth the same."""
    if score is None:
        return n < 0
    else:
        return (hot_of(rows, n, exists) >= 0) | ~(score_of(rows, score, n, exists) > -float("inf"))


@triton.jit
def orders(rows, score, n, c, alive, S):
    """Return the orders of the ids of chunks c (NO_ID outside the row), and their logits (NaN outside the row)."""
    z = load_chunk(rows, n, row_seen(rows, n), c, alive, float("nan"), S)
    id = c[:, None].to(tl.int64) * CHUNK + tl.arange(0, S.WIDTH)[None, :]
    order = order_of(worth_of(rows, score, n, z, alive), id)
    return tl.where((id < rows.V) & alive[:, None], order, NO_ID), z


@triton.jit
def orders_from(rows, score, n, begin, best, least, exists, S):
    """Return the orders of each row's next chunks, and which are at least `least`. A chunk is not read if its bound in
    `best` is below that."""
    c = chunks_from(begin, S)
    chunks = chunks_of(rows)
    there = each(exists, S) & (c < chunks)
    most = tl.load(best + each(n, S) * chunks + c, mask=there, other=NO_ID)
    order, _ = orders(rows, score, each(n, S), c, there & (most >= each(least, S)), S)
    return order, order >= each(least, S)[:, None]


@triton.jit
def count_from(rows, score, n, best, least, exists, S):
    count = tl.zeros([S.ROWS], tl.int32)
    for begin in range(0, chunks_of(rows), S.TOGETHER):
        _, reaches = orders_from(rows, score, n, begin, best, least, exists, S)
        count += tl.sum(by_row(tl.sum(reaches.to(tl.int32), 1), S), 1)
    return count


@launch.kernel
def list_orders_kernel(rows, score, N, num_rows, k, best, top, top_count, few, room, S: tl.constexpr):
    """Write the k largest orders of each row to `few` [N, room], unsorted. The next ones may be there too.

    best [N, chunks]: an upper bound of each chunk's orders, whose worth is that of the chunk's best entry. top
    [N, top_count]: the largest of these bounds, at most k."""
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (n < N) & is_present(num_rows, n)
    exists = exists & ~is_flat(rows, score, n, exists)
    hi = tl.where(exists, LARGEST, 0)
    lo = tl.load(top + n * top_count + k - 1, mask=exists & (n * 0 + k <= top_count), other=NO_ID + 1)
    lo = tl.where(exists, tl.maximum((lo >> 24) << 24, NO_ID + 1), 1)
    count = count_from(rows, score, n, best, lo, exists, S)
    while some(count > room):  # invariant: at least k orders are >= lo, and the k-th is <= hi
        more = count > room
        mid = middle(lo, hi)
        up = count_from(rows, score, n, best, mid, exists & more, S)
        lo = tl.where(more & (up >= k), mid, lo)
        hi = tl.where(more & (up < k), mid - 1, hi)
        count = tl.where(more & (up >= k), up, count)
    listed = tl.zeros([S.ROWS], tl.int32)
    for begin in range(0, chunks_of(rows), S.TOGETHER):
        order, reaches = orders_from(rows, score, n, begin, best, lo, exists, S)
        found = by_row(tl.sum(reaches.to(tl.int32), 1), S)
        before = before_each(listed, found, S)
        place = before[:, None] + tl.cumsum(reaches.to(tl.int32), 1) - 1
        tl.store(few + (each(n, S) * room)[:, None] + place, order, mask=reaches)
        listed += tl.sum(found, 1)


def best_orders(rows, score, table, N, num_rows, k, best):
    """Return the k best orders of each row, [N, k], descending; NO_ID for rows that need no search (is_flat)."""
    room = min(rows.V, max(2048, 4 * k))
    top = best.topk(min(k, table.chunk_count)).values
    few = torch.full((N, room), NO_ID.value, dtype=torch.int64, device=best.device)
    args = (rows, score, N, num_rows, k, best, top, top.size(1), few, room)
    launch.run_rows(list_orders_kernel, table, N, *args, threads=table.walk_threads)
    return few.topk(k).values

# SPDX-License-Identifier: Apache-2.0
"""Draft rows whose entries have ids of their own: sparse rows, or rows with a VocabMap (csrc/core/entry_ids.h).

A launch (put_entries_kernel) writes out the row of each position with its views: k float32 entries. An entry without an
id is -inf, in rows of probabilities 0. Stats are computed from these rows as from any others. The functions below find
the entries of target ids in a list of places that is sorted by id. Entries of one id add up. Ids, entries and places
are int32, since tiles of int64 take too many registers.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .memory import get_value, offset_of, stored_entry
from .penalties import anywhere, first_place
from .row import CHUNK, FLT_MAX, FLT_MIN, IDS_END, clean_prob, lane_of, log_prob, probs, scaled, widest

# The value that add_up() returns for each id. ENTRY: a float32 logit, in rows of probabilities a probability. WEIGHT:
# a float32 weight. PROB: a float64 probability. LOG_PROB: its logarithm. BOUND: a float32 upper bound of LOG_PROB.
ENTRY = tl.constexpr(0)
WEIGHT = tl.constexpr(1)
PROB = tl.constexpr(2)
LOG_PROB = tl.constexpr(3)
BOUND = tl.constexpr(4)


class Places(NamedTuple):
    """The first places j of ids v in the lists of their rows. b, row and at broadcast to v."""

    b: Any
    row: Any
    at: Any  # where the numbers of the row begin
    j: Any
    v: Any
    mask: Any


@triton.jit
def _numbers(side, b, row):
    if side.ids.V is None:
        return offset_of(side, b, row) * 3
    else:
        return (b + row) * 0


@triton.jit
def _place(side, at, j, mask):
    """Return the id and the entry at places j; -1 where there is no such place."""
    inside = mask & (j >= 0) & (j < side.V)
    if side.ids.V is None:
        id = side.ids.numbers + at + j
        return get_value(id, inside, -1), get_value(id + side.V, inside, -1)
    else:
        id = side.ids.numbers + at + 2 * j
        return get_value(id, inside, -1), get_value(id + 1, inside, -1)


@triton.jit
def _first(side, at, v, mask):
    """Return for each v >= 0 the first place whose id is not below v."""
    if side.ids.V is None:
        return first_place(side.ids.numbers + at, side.V, v, mask)
    else:
        first = side.ids.numbers + at + 3 * side.V + tl.minimum(v, side.ids.V)
        return tl.minimum(tl.maximum(get_value(first, mask, 0), 0), side.V)


@triton.jit
def places_of(side, b, row, v, mask):
    """Return the Places of ids v < 2^24. b, row and v broadcast to the shape of `mask`."""
    v = tl.broadcast_to(v, mask.shape).to(tl.int32)
    at = _numbers(side, b, row)
    return Places(b, row, at, _first(side, at, v, mask), v, mask)


@triton.jit
def chunk_places(side, b, row, c, alive, S):
    """Return the Places of the ids of chunks c."""
    begin = c * CHUNK
    alive = alive & (row >= 0)
    if side.ids.V is None:  # most chunks have no entry; one search finds these
        at = _numbers(side, b, row)
        id, _ = _place(side, at, _first(side, at, begin, alive), alive)
        alive &= (id >= begin) & (id < begin + CHUNK)
    v = begin[:, None] + tl.arange(0, S.WIDTH)[None, :]
    return places_of(side, b[:, None], row[:, None], v, alive[:, None] & (v < IDS_END))


@triton.jit
def _log_sum(x, y):
    """Return ln(exp(x) + exp(y)); y if x is -inf."""
    most = tl.maximum(x, y)
    both = most + tl.log(1.0 + tl.exp(tl.minimum(x, y) - most))
    return tl.where(x == -float("inf"), y, tl.where(y == -float("inf"), x, both))


@triton.jit
def weight_bound(side, stats, z):
    """Return float32 upper bounds of the log-weights of a chunk in a race (race.py), with room for rounding: -inf for
    entries that are not kept, +inf for those that make the row invalid."""
    if side.PROBS:
        p = clean_prob(z)
        x = tl.where(p == p, tl.log(tl.maximum(p, FLT_MIN)), float("nan"))
        kept = (p > 0) | (p != p)
    else:
        x = scaled(z, stats.max[:, None], stats.scale[:, None])
        kept = z >= stats.cutoff[:, None]
    x = tl.maximum(x + tl.abs(x) * 1e-6 + 1e-4, tl.where(x == x, -FLT_MAX, float("inf")))
    return tl.where(kept, x, -float("inf"))


@triton.jit
def _log_sum_bound(x, y):
    """Return an upper bound of ln(exp(x) + exp(y)); x or y if the other is -inf."""
    both = tl.maximum(x, y) + 0.7  # more than ln 2
    return tl.where(x == -float("inf"), y, tl.where(y == -float("inf"), x, both))


@triton.jit
def add_up(side, stats, places, WHAT: tl.constexpr):
    """Return the sum of the entries of each id, in the form WHAT. stats: those of the rows ([ROWS] for a chunk).

    Lists on a device cannot be checked, and may be wrong. A run of places ends where the id changes, and entries
    outside the row are ignored."""
    b, row, at, j, v = places.b, places.row, places.at, places.j, places.v
    if WHAT == PROB:
        total = tl.zeros(places.mask.shape, tl.float64)
    elif WHAT == LOG_PROB:
        total = tl.full(places.mask.shape, -float("inf"), tl.float64)
    else:
        logs: tl.constexpr = WHAT == BOUND or (WHAT == ENTRY and not side.PROBS)
        total = tl.full(places.mask.shape, -float("inf") if logs else 0.0, tl.float32)
    id, entry = _place(side, at, j, places.mask)
    here = places.mask & (id == v)
    while anywhere(here):
        inside = here & (entry >= 0) & (entry < side.V)
        z = stored_entry(side, b, row, entry, inside, 0.0)
        if WHAT == BOUND:
            total = tl.where(inside, _log_sum_bound(total, weight_bound(side, stats, z)), total)
        elif WHAT == LOG_PROB and side.PROBS:
            total = tl.where(inside, _log_sum(total, tl.log(clean_prob(z).to(tl.float64))), total)
        elif WHAT == LOG_PROB:
            total = tl.where(inside, _log_sum(total, log_prob(z, stats)), total)
        elif side.PROBS:
            total += tl.where(inside, clean_prob(z), 0.0).to(total.dtype)
        elif WHAT == ENTRY:
            total = tl.where(inside, _log_sum(total, z), total)
        elif WHAT == WEIGHT:
            total += tl.where(inside, probs(z, stats), 0.0)
        else:
            total += tl.where(inside, tl.exp(log_prob(z, stats)), 0.0)
        j += 1
        id, entry = _place(side, at, j, here)
        here &= id == v
    return total


@triton.jit
def merged_chunk(side, b, row, stats, c, alive, WHAT: tl.constexpr, S):
    """Return the ids and the values of chunks c of the places, which are sorted by id. The first place of an id has the
    sum of its entries (ENTRY or BOUND). Its other places have -inf, or for ENTRY in rows of probabilities 0."""
    at = _numbers(side, b, row)[:, None]
    j = (c * CHUNK)[:, None] + tl.arange(0, S.WIDTH)[None, :]
    mask = (alive & (row >= 0))[:, None] & (j < side.V)
    id, _ = _place(side, at, j, mask)
    before, _ = _place(side, at, j - 1, mask)
    first = mask & (id >= 0) & (before != id)
    # Triton drops the constants of a tuple that is assigned, so this one is made in the call.
    return id, add_up(side, stats, Places(b[:, None], row[:, None], at, j, id, first), WHAT)


@triton.jit
def id_of(side, b, row, entry, mask):
    """Return the ids of entries; -1 for entries without one."""
    id = get_value(side.ids.numbers + _numbers(side, b, row) + 2 * side.V + entry, mask, -1)
    end = IDS_END if side.ids.V is None else side.ids.V
    return tl.where((id >= 0) & (id < end), id, -1)


@triton.jit
def token_at(side, b, row, entry, mask):
    """Return the tokens of entries of rows; 0 for an entry without an id."""
    if side.ids.numbers is None:
        return entry
    else:
        return tl.maximum(id_of(side, b, row, entry, mask), 0).to(tl.int64)


@triton.jit
def chunk_ids(side, b, row, c, alive, S):
    """Return the ids of the entries of chunks c, in the row's order."""
    entry = (c * CHUNK)[:, None] + tl.arange(0, S.WIDTH)[None, :]
    return id_of(side, b[:, None], row[:, None], entry, (alive & (row >= 0))[:, None] & (entry < side.V))


@triton.jit
def holds(side, b, row, c, id, alive, S):
    """Return which entries of chunks c, in the row's order, belong to an id [ROWS]."""
    if side.ids.numbers is None:
        return tl.arange(0, S.WIDTH)[None, :] == lane_of(id, c)[:, None]
    else:
        return (id >= 0)[:, None] & (chunk_ids(side, b, row, c, alive, S) == id[:, None])


@triton.jit
def repeats(side, b, row, id, mask):
    """Return whether each id has more than one entry."""
    at = _numbers(side, b, row)
    next, _ = _place(side, at, _first(side, at, tl.maximum(id, 0).to(tl.int32), mask) + 1, mask)
    return mask & (next == id)


@triton.jit
def chunks_of_both(target, draft, b, q):
    """Return the number of chunks that cover all ids of p and of q [ROWS]."""
    if draft.ids.numbers is None:
        return tl.cdiv(widest(target, draft), CHUNK)
    else:
        there = q.row >= 0
        at = _numbers(draft, b, q.row)
        last, _ = _place(draft, at, _first(draft, at, there.to(tl.int32) * 0 + IDS_END, there) - 1, there)
        end = tl.minimum(tl.max(tl.maximum(last, q.hot)) + 1, IDS_END)
        return tl.cdiv(tl.maximum(end, target.V), CHUNK).to(tl.int32)

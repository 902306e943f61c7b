# SPDX-License-Identifier: Apache-2.0
"""count_tokens_ (csrc/ops/count_tokens_/count_tokens_.h): a program per request. Tokens are not sorted; all pairs of
them are compared in tiles."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from specdec_kernels.registry import MAX_VOCABULARY

from .core import launch
from .core.draw import INVALID_ROW
from .core.penalties import first_place

HISTORY_FULL = tl.constexpr(16)
TOKENS_END = tl.constexpr(MAX_VOCABULARY)
MOST = tl.constexpr((1 << 31) - 1)


class Tokens(NamedTuple):
    """The tokens of all requests."""

    data: Any  # [B, n]
    request_stride: Any
    token_stride: Any
    num_tokens: Any  # [B]; None: up to the first -1


class Step(NamedTuple):
    """The new ids of a request: distinct, not in its list, in ascending order. Each field is an array of n."""

    id: Any
    times: Any  # how often each was emitted
    below: Any  # how many ids of the list are below it


@triton.jit
def emitted(tokens, b, n, BLOCK: tl.constexpr):
    """Return the number of a request's emitted tokens; later entries are padding."""
    if tokens.num_tokens is not None:
        return tl.minimum(tl.maximum(tl.load(tokens.num_tokens + b).to(tl.int64), 0), n).to(tl.int32)
    else:
        end = tl.minimum(n, 1 << 30)
        for begin in range(0, n, BLOCK):
            i = begin + tl.arange(0, BLOCK)
            at = b * tokens.request_stride + i.to(tl.int64) * tokens.token_stride
            ends = (i < n) & (tl.load(tokens.data + at, mask=i < n, other=0) == -1)
            end = tl.minimum(end, tl.min(tl.where(ends, i, n), 0))
        return end


@triton.jit
def load_tokens(tokens, b, i, end):
    """Return the tokens of a request, int32; -1 for padding and for numbers that are no ids."""
    at = b * tokens.request_stride + i.to(tl.int64) * tokens.token_stride
    v = tl.load(tokens.data + at, mask=i < end, other=-1).to(tl.int64)
    return tl.where((v >= 0) & (v < TOKENS_END), v, -1).to(tl.int32)


@triton.jit
def ids_in(ids, counts, H, BLOCK: tl.constexpr):
    """Return the number of ids in a list; -1 if the list is invalid."""
    length = tl.minimum(H, 0)
    wrong = length
    for begin in range(0, H, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        id = tl.load(ids + j, mask=j < H, other=-1)
        before = tl.load(ids + j - 1, mask=(j < H) & (j > 0), other=-1)
        count = tl.load(counts + j, mask=(j < H) & (id != -1), other=0)
        ascends = (id >= 0) & ((j == 0) | ((before >= 0) & (before < id)))
        wrong += tl.sum(((id != -1) & ~(ascends & (count >= 0))).to(tl.int32), 0)
        length += tl.sum((id >= 0).to(tl.int32), 0)
    return tl.where(wrong > 0, -1, length)


@triton.jit
def count_known(ids, counts, length, tokens, b, end, new_times, TILE: tl.constexpr):
    """Count the tokens whose ids are in the list. For every other id, store in new_times, at its first token, how often
    it was emitted."""
    lane = tl.arange(0, TILE)
    for begin in range(0, end, TILE):
        i = begin + lane
        v = load_tokens(tokens, b, i, end)
        times = tl.zeros([TILE], tl.int32)
        before = tl.zeros([TILE], tl.int32)
        for other in range(0, end, TILE):
            j = other + lane
            equal = (v[:, None] == load_tokens(tokens, b, j, end)[None, :]).to(tl.int32)
            times += tl.sum(equal, 1)
            before += tl.sum(tl.where(j[None, :] < i[:, None], equal, 0), 1)
        first = (v >= 0) & (before == 0)
        at = first_place(ids, length, v, first)
        known = first & (at < length)
        known &= tl.load(ids + at, mask=known, other=-1) == v
        count = tl.load(counts + at, mask=known, other=0).to(tl.int64) + times
        tl.store(counts + at, tl.minimum(count, MOST).to(tl.int32), mask=known)
        tl.store(new_times + i, tl.where(first & ~known, times, 0), mask=i < end)
    tl.debug_barrier()


@triton.jit
def collect_new(ids, length, tokens, b, end, new_times, step, TILE: tl.constexpr):
    """Put the new ids in ascending order in `step`. Return their number."""
    lane = tl.arange(0, TILE)
    fresh = tl.minimum(end, 0)
    for begin in range(0, end, TILE):
        i = begin + lane
        v = load_tokens(tokens, b, i, end)
        times = tl.load(new_times + i, mask=i < end, other=0)
        k = tl.zeros([TILE], tl.int32)
        for other in range(0, end, TILE):
            j = other + lane
            is_new = tl.load(new_times + j, mask=j < end, other=0) > 0
            lower = is_new[None, :] & (load_tokens(tokens, b, j, end)[None, :] < v[:, None])
            k += tl.sum(lower.to(tl.int32), 1)
        tl.store(step.id + k, v, mask=times > 0)
        tl.store(step.times + k, times, mask=times > 0)
        tl.store(step.below + k, first_place(ids, length, v, times > 0), mask=times > 0)
        fresh += tl.sum((times > 0).to(tl.int32), 0)
    tl.debug_barrier()
    return fresh


@triton.jit
def up_to(counts, length, step, fresh, most, BLOCK: tl.constexpr):
    """Return the number of entries, of the list and the new ids together, whose count is at most `most`."""
    n = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, length, BLOCK):
        j = begin + tl.arange(0, BLOCK)
        n += ((j < length) & (tl.load(counts + j, mask=j < length, other=0) <= most)).to(tl.int32)
    for begin in range(0, fresh, BLOCK):
        k = begin + tl.arange(0, BLOCK)
        n += ((k < fresh) & (tl.load(step.times + k, mask=k < fresh, other=0) <= most)).to(tl.int32)
    return tl.sum(n, 0)


@triton.jit
def count_at(counts, step, fresh, place, mask):
    """Return the counts at places in the merged list: its entries and the new ids, in ascending order of ids."""
    low = tl.zeros_like(place)
    high = low + tl.where(mask, fresh, 0)
    while tl.max((low < high).to(tl.int32), 0) > 0:
        k = (low + high) // 2
        before = tl.load(step.below + k, mask=low < high, other=0) + k < place
        high = tl.where((low < high) & ~before, k, high)
        low = tl.where((low < high) & before, k + 1, low)
    is_new = mask & (low < fresh)
    is_new &= tl.load(step.below + low, mask=is_new, other=-1) + low == place
    times = tl.load(step.times + low, mask=is_new, other=0)
    return tl.where(is_new, times, tl.load(counts + place - low, mask=mask & ~is_new, other=0))


@triton.jit
def choose(counts, length, step, fresh, drop, BLOCK: tl.constexpr):
    """Return the largest count of the `drop` entries to remove, and the place in the merged list from which on entries
    with that count are removed."""
    below = tl.minimum(drop, 0).to(tl.int64) - 1
    most = below + 1
    few = up_to(counts, length, step, fresh, most, BLOCK) < drop
    while few & (most < MOST):
        below = most
        most = 2 * most + 1
        few = up_to(counts, length, step, fresh, most, BLOCK) < drop
    while below + 1 < most:
        middle = below + (most - below) // 2
        few = up_to(counts, length, step, fresh, middle, BLOCK) < drop
        below = tl.where(few, middle, below)
        most = tl.where(few, most, middle)
    left = drop - up_to(counts, length, step, fresh, most - 1, BLOCK)
    end = length + fresh
    last = end - 1
    while (last >= 0) & (left > 0):
        place = last - tl.arange(0, BLOCK)
        leaves = (place >= 0) & (count_at(counts, step, fresh, place, place >= 0) == most)
        upto = tl.cumsum(leaves.to(tl.int32), 0)
        end = tl.minimum(end, tl.min(tl.where(leaves & (upto <= left), place, end), 0))
        left -= tl.sum(leaves.to(tl.int32), 0)
        last -= BLOCK
    return most, end


@triton.jit
def remove_others(ids, counts, length, step, fresh, most, end, BLOCK: tl.constexpr):
    """Remove the entries of the list and the new ids that choose() selected. Return how many of each remain."""
    lane = tl.arange(0, BLOCK)
    kept = tl.minimum(length, 0)
    for begin in range(0, length, BLOCK):
        j = begin + lane
        id = tl.load(ids + j, mask=j < length, other=-1)
        count = tl.load(counts + j, mask=j < length, other=-1)
        tied = (j < length) & (count == most)
        stays = (count > most) | (tied & (j + first_place(step.id, fresh, id, tied) < end))
        to = kept + tl.cumsum(stays.to(tl.int32), 0) - 1
        tl.debug_barrier()  # all entries of the tile are read before one is written
        tl.store(ids + to, id, mask=stays)
        tl.store(counts + to, count, mask=stays)
        kept += tl.sum(stays.to(tl.int32), 0)
        tl.debug_barrier()
    new = tl.minimum(fresh, 0)
    for begin in range(0, fresh, BLOCK):
        k = begin + lane
        id = tl.load(step.id + k, mask=k < fresh, other=-1)
        times = tl.load(step.times + k, mask=k < fresh, other=-1)
        place = tl.load(step.below + k, mask=k < fresh, other=0) + k
        stays = (times > most) | ((k < fresh) & (times == most) & (place < end))
        to = new + tl.cumsum(stays.to(tl.int32), 0) - 1
        below = first_place(ids, kept, id, stays)
        tl.debug_barrier()
        tl.store(step.id + to, id, mask=stays)
        tl.store(step.times + to, times, mask=stays)
        tl.store(step.below + to, below, mask=stays)
        new += tl.sum(stays.to(tl.int32), 0)
        tl.debug_barrier()
    return kept, new


@triton.jit
def insert(ids, counts, length, step, fresh, BLOCK: tl.constexpr):
    """Insert the new ids, for which the list has room. Entries move from the back, so that each is read before its
    place is written."""
    lane = tl.arange(0, BLOCK)
    first = tl.load(step.below, mask=fresh > 0, other=length)
    last = length - 1
    while last >= first:
        j = last - lane
        moves = j >= first
        id = tl.load(ids + j, mask=moves, other=-1)
        count = tl.load(counts + j, mask=moves, other=0)
        to = j + first_place(step.id, fresh, id, moves)
        tl.debug_barrier()
        tl.store(ids + to, id, mask=moves)
        tl.store(counts + to, count, mask=moves)
        tl.debug_barrier()
        last -= BLOCK
    for begin in range(0, fresh, BLOCK):
        k = begin + lane
        to = tl.load(step.below + k, mask=k < fresh, other=0) + k
        tl.store(ids + to, tl.load(step.id + k, mask=k < fresh, other=-1), mask=k < fresh)
        tl.store(counts + to, tl.load(step.times + k, mask=k < fresh, other=0), mask=k < fresh)


@triton.jit
def list_of(row, b, S, BLOCK: tl.constexpr):
    """Return the index of a request's list, and whether it is valid and not the list of an earlier request too."""
    if row is None:
        return b, b < S
    else:
        s = tl.load(row + b).to(tl.int64)
        named = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, b, BLOCK):
            other = begin + tl.arange(0, BLOCK)
            named += ((other < b) & (tl.load(row + other, mask=other < b, other=-1).to(tl.int64) == s)).to(tl.int32)
        return s, (s >= 0) & (s < S) & (tl.sum(named, 0) == 0)


@launch.kernel
def count_tokens_kernel(
    ids, counts, ids_stride, counts_stride, S, H, tokens, row, n, scratch, status,
    BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    s, fine = list_of(row, b, S, BLOCK)
    state = tl.where(fine | (s == -1), 0, INVALID_ROW)
    s = tl.where(fine, s, 0)
    ids += s * ids_stride
    counts += s * counts_stride
    length = ids_in(ids, counts, tl.where(fine, H, 0), BLOCK)
    state = tl.where(length < 0, INVALID_ROW, state)
    if fine & (length >= 0):
        new_times = scratch + b * 4 * n
        step = Step(new_times + n, new_times + 2 * n, new_times + 3 * n)
        end = emitted(tokens, b, n, BLOCK)
        count_known(ids, counts, length, tokens, b, end, new_times, TILE)
        fresh = collect_new(ids, length, tokens, b, end, new_times, step, TILE)
        drop = length + fresh - H
        if drop > 0:
            state = HISTORY_FULL
            most, first = choose(counts, length, step, fresh, drop, BLOCK)
            length, fresh = remove_others(ids, counts, length, step, fresh, most, first, BLOCK)
        insert(ids, counts, length, step, fresh, BLOCK)
    tl.store(status + b, state)


def count_tokens_(status, ids, counts, tokens, num_tokens, row):
    B, n = tokens.shape
    if B:
        scratch = torch.empty((B, 4, n), dtype=torch.int32, device=ids.device)
        given = (None if x is None else x.contiguous() for x in (num_tokens, row))
        num_tokens, row = given
        lists = (ids, counts, ids.stride(0), counts.stride(0), *ids.shape)
        step = (Tokens(tokens, *tokens.stride(), num_tokens), row, n, scratch, status)
        tile = min(32, max(16, launch.power_of_2(n)))
        launch.run(count_tokens_kernel, (B,), 128, *lists, *step, BLOCK=launch.elements(), TILE=tile)

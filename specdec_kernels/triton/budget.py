# SPDX-License-Identifier: Apache-2.0
"""budget (csrc/ops/budget/budget.h), in one program.

It stores the keys of all slots. Then it finds the key of the last slot to take, one bit at a time. At the end it counts
the slots of each request up to that key."""

import torch
import triton
import triton.language as tl

from .core import launch

NO_KEY = tl.constexpr((1 << 63) - 1)
TOP = tl.constexpr((1 << 31) - 1)  # all bits but the sign: negative survivals count as 0


@triton.jit
def lengths_of(num_drafts, b, B, G):
    if num_drafts is None:
        return tl.where(b < B, G, 0)
    else:
        n = tl.load(num_drafts + b, mask=b < B, other=0)
        return tl.minimum(tl.maximum(n.to(tl.int64), 0), G).to(tl.int32)


@triton.jit
def store_keys(survival, request_stride, draft_stride, num_drafts, slot_keys, B, G, BLOCK: tl.constexpr):
    """Store the key of slot i of request b at i * B + b, NO_KEY if the request has no such slot. Return the number of
    slots.

    From its highest bits down, a key holds the smallest survival of the request up to the slot (the larger, the smaller
    the key), the slot, and the request."""
    slots = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, B, BLOCK):
        b = begin + tl.arange(0, BLOCK)
        length = lengths_of(num_drafts, b, B, G)
        slots += length
        least = tl.full([BLOCK], float("inf"), tl.float32)
        place = b.to(tl.int64)
        at = place * request_stride
        for i in range(0, G):
            x = tl.load(survival + at, mask=i < length, other=0.0)
            worth = tl.where(x > 0, x, 0.0)  # NaN too counts as 0
            least = tl.where(worth < least, worth, least)
            key = (least.to(tl.int32, bitcast=True) ^ TOP).to(tl.int64) << 32 | place
            tl.store(slot_keys + place, tl.where(i < length, key, NO_KEY), mask=b < B)
            place += B
            at += draft_stride
    tl.debug_barrier()
    return tl.sum(slots, 0)


@triton.jit
def up_to(slot_keys, last, B, G, BLOCK: tl.constexpr):
    """Return the number of keys that are at most `last`."""
    n = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, B * G, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        n += (tl.load(slot_keys + at, mask=at < B * G, other=NO_KEY) <= last).to(tl.int32)
    return tl.sum(n, 0)


@launch.kernel
def budget_kernel(
    survival, request_stride, draft_stride, num_drafts, total, slot_keys, kept, B, G, BLOCK: tl.constexpr
):  # fmt: skip
    slots = store_keys(survival, request_stride, draft_stride, num_drafts, slot_keys, B, G, BLOCK)
    wanted = tl.minimum(slots, total)
    last = tl.minimum(slots, 0).to(tl.int64)
    bit = last + (1 << 62)
    while bit > 0:
        few = up_to(slot_keys, last + bit - 1, B, G, BLOCK) < wanted
        last = tl.where(few, last + bit, last)
        bit = bit >> 1
    for begin in range(0, B, BLOCK):
        b = begin + tl.arange(0, BLOCK)
        n = tl.zeros([BLOCK], tl.int32)
        place = b.to(tl.int64)
        for _ in range(0, G):
            n += (tl.load(slot_keys + place, mask=b < B, other=NO_KEY) <= last).to(tl.int32)
            place += B
        tl.store(kept + b, tl.where(wanted > 0, n, 0), mask=b < B)


def budget(kept, survival, total, num_drafts):
    B, G = survival.shape
    if B:
        slot_keys = torch.empty((G, B), dtype=torch.int64, device=survival.device)
        given = (survival, *survival.stride(), None if num_drafts is None else num_drafts.contiguous())
        args = (*given, min(total, B * G), slot_keys, kept, B, G)
        launch.run(budget_kernel, (1,), 256, *args, BLOCK=1024)

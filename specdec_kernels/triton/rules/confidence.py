# SPDX-License-Identifier: Apache-2.0
"""How sure a model is (csrc/rules/confidence.h): one pass over a row for all that a rule may ask of it."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.row import (
    FLT_MAX,
    LOG2E,
    chunks_from,
    chunks_of,
    each,
    each_request,
    finite_max,
    is_bad,
    load_chunk,
    max_of,
    scaled,
    sum_of,
    weight_of,
)


class Confidence(NamedTuple):
    largest: Any  # probability; NaN if the row is no law
    entropy: Any
    max: Any  # the largest logit
    above: Any  # how many entries are larger than `least`


@triton.jit
def is_unscaled(d):
    return (d.hot < 0) & (d.stats.scale == 1) & (d.stats.cutoff == -FLT_MAX)


@triton.jit
def load_row(side, d, c, reads, S):
    """Chunks c of the rows of laws."""
    alive = each(reads & (d.row >= 0), S)
    return load_chunk(side, each_request(S), each(d.row, S), c, alive, -float("inf"), S)


@triton.jit
def count_above(z, least, S):
    return tl.sum(tl.reshape(tl.sum((z > each(least, S)[:, None]).to(tl.int32), 1), [S.ROWS, S.TOGETHER]), 1)


@triton.jit
def prob_confidence(side, d, least, reads, S):
    top = tl.full([S.ROWS], 0.0, tl.float32)
    bad = tl.full([S.ROWS], 0, tl.int32)
    above = tl.full([S.ROWS], 0, tl.int32)
    entropy = tl.full([S.ROWS], 0.0, tl.float64)
    for begin in range(0, tl.max(tl.where(reads, chunks_of(side), 0), 0), S.TOGETHER):
        z = load_row(side, d, chunks_from(begin, S), reads, S)
        top = tl.maximum(top, max_of(finite_max(z), S))
        bad = tl.maximum(bad, max_of(is_bad(z).to(tl.int32), S))
        normal = (z >= 1.1754943508222875e-38) & (z < float("inf"))
        x = tl.where(normal, z, 1.0)
        entropy -= sum_of(x * tl.log(x), S)
        above += count_above(z, least, S)
    fine = (bad == 0) & (top > 0)
    largest = tl.where(fine, top.to(tl.float64), float("nan"))
    return Confidence(largest, tl.where(fine, entropy, float("nan")), top, above)


@triton.jit
def logit_confidence(side, d, scale, cutoff, least, reads, S):
    top = tl.full([S.ROWS], -float("inf"), tl.float32)
    total = tl.full([S.ROWS], 0.0, tl.float64)
    parts = tl.full([S.ROWS], 0.0, tl.float64)  # sum of -x exp(x)
    above = tl.full([S.ROWS], 0, tl.int32)
    least_kept = each(cutoff, S)[:, None]
    for begin in range(0, tl.max(tl.where(reads, chunks_of(side), 0), 0), S.TOGETHER):
        z = load_row(side, d, chunks_from(begin, S), reads, S)
        above += count_above(z, least, S)
        new = tl.maximum(top, max_of(finite_max(z), S))
        x = scaled(z, each(new, S)[:, None], each(scale, S)[:, None])
        e = tl.where(z < least_kept, 0.0, weight_of(x * LOG2E))  # so a NaN reaches the sum
        of_x = tl.where(
            z >= least_kept, e * -tl.maximum(x, -100.0), 0.0
        )  # below it exp(x) is nothing, and x must be finite
        # What was summed relative to an earlier maximum moves to the new one.
        moved = tl.where(top > -float("inf"), scaled(top, new, scale).to(tl.float64), 0.0)
        shrink = tl.exp(moved)
        parts = (parts - total * moved) * shrink + sum_of(of_x, S)
        total = total * shrink + sum_of(e, S)
        top = new
    fine = (top > -float("inf")) & (total < float("inf"))
    log_norm = tl.where(fine, tl.log(total), float("nan"))
    return Confidence(tl.exp(-log_norm), log_norm + parts / total, top, above)


@triton.jit
def confidence(side, d, sampled, least, wanted, whole, S):
    """Of the softmax at T = 1 without filters, or of the law as sampled. A pass over the row is needed where the law
    does not say it, and for the entropy and the count (`whole`). A drafted token without a row is sure."""
    has_row = d.row >= 0
    if side.data is None:
        one = tl.full([S.ROWS], 1.0, tl.float64)
        return Confidence(one, one * 0, tl.full([S.ROWS], 1.0, tl.float32), tl.full([S.ROWS], 0, tl.int32))
    else:
        if side.PROBS:
            out = prob_confidence(side, d, least, wanted & has_row, S)
        else:
            known = sampled | is_unscaled(d)
            scale = tl.where(sampled, d.stats.scale, 1.0)
            cutoff = tl.where(sampled, d.stats.cutoff, -FLT_MAX)
            reads = wanted & has_row & (whole | ~known)
            read = logit_confidence(side, d, scale, cutoff, least, reads, S)
            certain = tl.where(d.hot >= 0, 1.0, tl.exp(-d.stats.log_norm.to(tl.float64)))
            largest = tl.where(reads, read.largest, certain)
            out = Confidence(largest, read.entropy, tl.where(reads, read.max, d.stats.max), read.above)
        largest = tl.where(has_row, out.largest, 1.0)
        return Confidence(largest, tl.where(has_row, out.entropy, 0.0), out.max, out.above)

# SPDX-License-Identifier: Apache-2.0
"""How sure a model is (csrc/rules/confidence.h): one pass over a row for all that a rule may ask of it."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.row import FLT_MAX, LOG2E, finite_max, is_bad, scaled, weight_of
from ..core.pair import chunks_of, load


class Confidence(NamedTuple):
    largest: Any  # probability; NaN if the row is no law
    entropy: Any
    most: Any  # the largest logit
    above: Any  # how many entries are larger than `least`


@triton.jit
def is_unscaled(d):
    return (d.hot < 0) & (d.scale == 1) & (d.cutoff == -FLT_MAX)


@triton.jit
def prob_confidence(side, d, least, reads, S):
    top = tl.full([], 0.0, tl.float32)
    bad = tl.full([], 0, tl.int32)
    above = tl.full([], 0, tl.int32)
    entropy = tl.full([], 0.0, tl.float64)
    for begin in range(0, tl.where(reads, chunks_of(side.V), 0), S.TOGETHER):
        c = begin + tl.arange(0, S.TOGETHER)
        z = load(side, d, c, reads, -float("inf"), S)
        top = tl.maximum(top, tl.max(finite_max(z), 0))
        bad = tl.maximum(bad, tl.max(is_bad(z).to(tl.int32), 0))
        normal = (z >= 1.1754943508222875e-38) & (z < float("inf"))
        x = tl.where(normal, z, 1.0)
        entropy -= tl.sum(tl.sum(x * tl.log(x), 1).to(tl.float64), 0)
        above += tl.sum(tl.sum((z > least).to(tl.int32), 1), 0)
    fine = (bad == 0) & (top > 0)
    return Confidence(tl.where(fine, top.to(tl.float64), float("nan")), tl.where(fine, entropy, float("nan")), top, above)


@triton.jit
def logit_confidence(side, d, scale, cutoff, least, reads, S):
    top = tl.full([], -float("inf"), tl.float32)
    total = tl.full([], 0.0, tl.float64)
    lack = tl.full([], 0.0, tl.float64)  # sum of -x exp(x)
    above = tl.full([], 0, tl.int32)
    for begin in range(0, tl.where(reads, chunks_of(side.V), 0), S.TOGETHER):
        c = begin + tl.arange(0, S.TOGETHER)
        z = load(side, d, c, reads, -float("inf"), S)
        above += tl.sum(tl.sum((z > least).to(tl.int32), 1), 0)
        most = tl.max(finite_max(z), 0)
        new = tl.maximum(top, most)
        x = scaled(z, new, scale)
        e = tl.where(z < cutoff, 0.0, weight_of(x * LOG2E))  # so a NaN reaches the sum
        of_x = tl.where(z >= cutoff, e * -tl.maximum(x, -100.0), 0.0)  # below it exp(x) is nothing, and x must be finite
        # What was summed relative to an earlier maximum moves to the new one.
        moved = tl.where(top > -float("inf"), scaled(top, new, scale).to(tl.float64), 0.0)
        shrink = tl.exp(moved)
        lack = (lack - total * moved) * shrink + tl.sum(tl.sum(of_x, 1).to(tl.float64), 0)
        total = total * shrink + tl.sum(tl.sum(e, 1).to(tl.float64), 0)
        top = new
    fine = (top > -float("inf")) & (total < float("inf"))
    log_norm = tl.where(fine, tl.log(total), float("nan"))
    return Confidence(tl.exp(-log_norm), log_norm + lack / total, top, above)


@triton.jit
def confidence(side, d, sampled, least, wanted, whole, S):
    """Of the softmax at T = 1 without filters, or of the law as sampled. A pass over the row is needed where the law does not say it,
    and for the entropy and the count (`whole`). A drafted token without a row is sure."""
    if side.rows is None:
        one = tl.full([], 1.0, tl.float64)
        return Confidence(one, one * 0, tl.full([], 1.0, tl.float32), tl.full([], 0, tl.int32))
    else:
        if side.PROBS:
            out = prob_confidence(side, d, least, wanted & d.row, S)
        else:
            known = sampled | is_unscaled(d)
            scale = tl.where(sampled, d.scale, 1.0)
            cutoff = tl.where(sampled, d.cutoff, -FLT_MAX)
            reads = wanted & d.row & (whole | ~known)
            read = logit_confidence(side, d, scale, cutoff, least, reads, S)
            largest = tl.where(reads, read.largest, tl.where(d.hot >= 0, 1.0, tl.exp(-d.log_norm.to(tl.float64))))
            out = Confidence(largest, read.entropy, tl.where(reads, read.most, d.most), read.above)
        return Confidence(tl.where(d.row, out.largest, 1.0), tl.where(d.row, out.entropy, 0.0), out.most, out.above)

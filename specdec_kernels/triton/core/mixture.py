# SPDX-License-Identifier: Apache-2.0
"""A law made of two, p and q, and what of it is left when q is taken away: evaluated id by id, never stored
(csrc/core/mixture.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .row import CHUNK, each
from .rows import draft_prob, entries

# pi = of_p p + of_q q where q is kept, of_p p elsewhere; or max(min(q, of_q p), of_p p); or p or q, which TV will tell.
MIXED = tl.constexpr(0)
CAPPED = tl.constexpr(1)
UNDECIDED = tl.constexpr(2)
# Whose entry tells, reaching the threshold, that q is kept there
NOBODY = tl.constexpr(0)
TARGET = tl.constexpr(1)
DRAFT = tl.constexpr(2)


class Mixture(NamedTuple):
    form: Any
    score_row: Any
    of_p: Any
    of_q: Any
    threshold: Any  # NaN keeps nothing
    confidence_gap: Any  # where TV will tell
    open: Any  # of_p lacks what a sum over V will tell, and stands below it


@triton.jit
def plain(form, score_row, of_p, of_q, threshold):
    """A mixture of which nothing is open."""
    return Mixture(form, score_row, of_p, of_q, threshold, of_p.to(tl.float64) * 0, form * 0)


@triton.jit
def is_p(pi):
    return (pi.form == MIXED) & (pi.of_p == 1) & (pi.of_q == 0)


@triton.jit
def is_q(pi):
    return (pi.form == MIXED) & (pi.of_p == 0) & (pi.of_q == 1) & (pi.score_row == NOBODY)


@triton.jit
def hot_of(pi, p, q):
    """The one id that is possible; -1: several are."""
    return tl.where(is_p(pi), p.hot, tl.where(is_q(pi), q.hot, -1))


@triton.jit
def keeps(pi, of_target, of_draft):
    """Whether q is kept at ids whose entries these are."""
    score = tl.where(pi.score_row == TARGET, of_target, of_draft)
    return (pi.score_row == NOBODY) | (score >= pi.threshold)


@triton.jit
def mixed_prob(pi, p, q, kept, inside):
    """pi at an id with these probabilities, of the target's vocabulary where `inside`. Of what is open, no more than
    pi."""
    y = tl.where(inside, draft_prob(q), 0.0)
    of_p = pi.of_p.to(tl.float64) * p
    of_q = pi.of_q.to(tl.float64)
    mixed = of_p + tl.where(kept, of_q, 0.0) * y
    mixed = tl.where(is_p(pi), p, mixed)
    mixed = tl.where(is_q(pi), y, mixed)
    most = of_q * p
    capped = tl.where(y < most, y, most)
    capped = tl.where(capped < of_p, of_p, capped)
    return tl.where(pi.form == CAPPED, capped, tl.where(pi.form == UNDECIDED, tl.where(p < y, p, y), mixed))


@triton.jit
def weights(pi, z, x, z_q, y, m, minus):
    """(m pi - minus q)+ at ids of the target whose entries are z and z_q and probabilities x and y, put together so
    that nothing cancels where pi is q."""
    mixed = m * pi.of_p * x + tl.where(keeps(pi, z, z_q), m * pi.of_q - minus, -minus) * y
    capped = m * tl.maximum(tl.minimum(y, pi.of_q * x), pi.of_p * x) - minus * y
    return tl.maximum(tl.where(pi.form == CAPPED, capped, mixed), 0.0)


@triton.jit
def each_mixture(pi, S):
    """As often as chunks are read at once; what is open stays behind."""
    return plain(each(pi.form, S), each(pi.score_row, S), each(pi.of_p, S), each(pi.of_q, S), each(pi.threshold, S))


@triton.jit
def column(pi):
    """For a tile of chunks."""
    return plain(pi.form[:, None], pi.score_row[:, None], pi.of_p[:, None], pi.of_q[:, None], pi.threshold[:, None])


@triton.jit
def inside_target(target, c, S):
    return tl.arange(0, S.WIDTH)[None, :] < (target.V - c * CHUNK)[:, None]


@triton.jit
def mixed_chunk(target, draft, b, p, q, pi, m, minus, c, reads_p, alive, S):
    """Chunks c of p's row as it is, and the weights (m pi - minus q)+."""
    z, x = entries(target, b, p, c, alive & reads_p, False, S)
    z_q, y = entries(draft, b, q, c, alive & ((minus != 0) | (pi.of_q != 0)), True, S)
    w = weights(column(pi), z, x, z_q, y, m[:, None], minus[:, None])
    return z, tl.where(inside_target(target, c, S) & alive[:, None], w, 0.0)

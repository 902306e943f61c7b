# SPDX-License-Identifier: Apache-2.0
"""The law that a chain begins with: p, or the law pi of p and q that a rule puts in its place (csrc/core/mixture.h). pi lies where
links lie, right before the first one of its chain: q, of_p, of_q and cut in place of m, s and cap, form and ruler in place of gone."""

import triton
import triton.language as tl

from .row import CHUNK, clean_p, clean_q, lane_of, load_chunk, probs
from .links import Link, get_link, put_link
from ..rules.rule_dist import MIXED, NOBODY, Pi, is_p, is_q, kept, pi_prob, pi_weights
from .side import offset_of, prob

RULERS = tl.constexpr(4)  # more than there are


@triton.jit
def put_pi(rows, at, pi, q, mask):
    """For the chain whose links begin at `at`."""
    one = tl.full(at.shape, 1.0, tl.float32)
    code = (pi.form * RULERS + pi.ruler).to(tl.int64) + at * 0
    put_link(rows, at - 1, Link(q, one * pi.of_p, one * pi.of_q, one * pi.cut, code), mask)


@triton.jit
def put_p(rows, at, q, mask):
    """p stands for itself."""
    one = tl.full(at.shape, 1.0, tl.float32)
    put_link(rows, at - 1, Link(q, one, one * 0, one * 0, at * 0 + (MIXED * RULERS + NOBODY)), mask)


@triton.jit
def get_pi(rows, at, mask):
    """pi, and the q that it is made of."""
    link = get_link(rows, at - 1, mask)
    code = tl.maximum(link.gone, 0)
    return Pi(code // RULERS, code % RULERS, link.m, link.s, link.cap, 0.0, 0), link.q


@triton.jit
def standing(rows, p, at, mask):
    """Whether p stands for itself, and the one id that is possible, -1: several are."""
    if rows.BLENDS:
        pi, q = get_pi(rows, at, mask)
        return is_p(pi), tl.where(is_p(pi), p.hot, tl.where(is_q(pi), q.hot, -1))
    else:
        return mask == mask, p.hot


@triton.jit
def entry_of(side, b, d, v, mask):
    """The row of a law as it is at ids v; NaN outside it, and of a token without a row its probability."""
    inside = mask & (d.row >= 0) & (v >= 0) & (v < side.V)
    z = tl.load(side.rows + offset_of(side, b, d.row) + v, mask=inside, other=float("nan")).to(tl.float32)
    return tl.where(d.row >= 0, z, tl.where(d.hot == v, 1.0, 0.0))


@triton.jit
def first_weight(rows, b, p, at, v, mask):
    """The weight of ids v before any link, in float64, NaN where p is no law."""
    x, _ = prob(rows.target, b, p, v, mask)
    x = tl.where(x < 0, 0.0, x)
    if rows.BLENDS:
        pi, q = get_pi(rows, at, mask)
        z = entry_of(rows.target, b, p, v, mask)
        if rows.draft.rows is None:
            y = tl.where(q.hot == v, 1.0, 0.0).to(tl.float64)
            keeps = kept(pi, z, y.to(tl.float32))
        else:
            y, _ = prob(rows.draft, b, q, v, mask)
            keeps = kept(pi, z, entry_of(rows.draft, b, q, v, mask))
        inside = v < rows.target.V
        x = tl.where(inside, pi_prob(pi, x, y, keeps & inside, inside), 0.0)
    return x


@triton.jit
def entries(side, b, d, c, alive, DRAFT: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk c of a law's row as it is, and its probabilities. A token without a row is its own row."""
    one = tl.where(tl.arange(0, WIDTH)[None, :] == lane_of(d.hot, c)[:, None], 1.0, 0.0)
    if side.rows is None:
        return one, one
    else:
        z = load_chunk(side.rows, offset_of(side, b, d.row), side.V, c, alive & (d.row >= 0), -float("inf"), WIDTH)
        if side.PROBS:
            w = clean_q(z) if DRAFT else clean_p(z)
        else:
            w = probs(z, d.scale, d.cutoff, d.log_norm, d.most)
            if DRAFT:
                w = clean_q(w)
        return tl.where((d.row >= 0)[:, None], z, one), tl.where(((d.hot >= 0) | (d.row < 0))[:, None], one, w)


@triton.jit
def first_chunk(rows, b, p, at, c, alive, WIDTH: tl.constexpr):
    """Chunk c of p's row as it is, and the weights before any link."""
    if rows.BLENDS:
        z, x = entries(rows.target, b, p, c, alive, False, WIDTH)
        pi, q = get_pi(rows, at, alive)
        z_q, y = entries(rows.draft, b, q, c, alive & (pi.of_q != 0), True, WIDTH)
        tile = Pi(pi.form[:, None], pi.ruler[:, None], pi.of_p[:, None], pi.of_q[:, None], pi.cut[:, None], 0.0, 0)
        inside = tl.arange(0, WIDTH)[None, :] < (rows.target.V - c * CHUNK)[:, None]
        return z, tl.where(inside & alive[:, None], pi_weights(tile, z, x, z_q, y, 1.0, 0.0), 0.0)
    else:
        z = load_chunk(rows.target.rows, offset_of(rows.target, b, p.row), rows.target.V, c, alive, -float("inf"), WIDTH)
        if rows.target.PROBS:
            w = clean_p(z)
        else:
            w = probs(z, p.scale, p.cutoff, p.log_norm, p.most)
        return z, w

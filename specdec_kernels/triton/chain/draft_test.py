# SPDX-License-Identifier: Apache-2.0
"""The drafts of requests, and a test of all of them at once (csrc/ops/verify_chain/verify_chain.h).

The test finds where each request stops, and its status. In a race (race.h), a draft is accepted if it is the winner of
its row."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core import launch
from ..core.draw import DOMAIN_ACCEPT, INVALID_BONUS, INVALID_DRAFT, INVALID_ROW, uniform_of
from ..core.memory import get_value, is_present, names_row, number_of, span
from ..core.row import Dist, widest
from ..core.rows import accept_test, is_draft_prob, is_something, is_valid, one_hot, prob
from ..core.views import seen
from ..row_stats import dist


class Given(NamedTuple):
    """The arguments of a call that describe its drafts."""

    tokens: Any  # [B, G], or [D] if ragged
    cu_draft: Any  # [B+1] if ragged; None: every request has G drafts
    bonus_tokens: Any  # None: the bonus token is drawn


class Drafts(NamedTuple):
    given: Any
    batch_stride: Any
    stride: Any
    G: Any
    D: Any


class Request(NamedTuple):
    b: Any
    start: Any  # index of its first draft in a ragged call
    g: Any  # number of its drafts


class Out(NamedTuple):
    tokens: Any  # [B, G+1]
    num_accepted: Any  # [B]
    logprobs: Any  # [B, G+1]
    status: Any  # [B]
    by_rule: Any  # [B]: whether request_kernel verifies the request, not stop_kernel and final_kernel; None: never


class DraftTest(NamedTuple):
    d: Any  # drafts, or the winners of a race, [ROWS, POSITIONS]
    log_p: Any
    n: Any  # number of accepted drafts
    removed: Any  # whether a draft was rejected and its q is valid: (p - q)+ is left; None in a race
    status: Any


@triton.jit
def request_of(drafts, b, exists):
    if drafts.given.cu_draft is None:
        return Request(b, b * 0, b * 0 + drafts.G)
    else:
        start, g = span(drafts.given.cu_draft, b, drafts.G, drafts.D, exists)
        return Request(b, start, g.to(tl.int64))


@triton.jit
def load_drafts(drafts, x, i, mask):
    if drafts.given.cu_draft is None:
        at = x.b * drafts.batch_stride + i * drafts.stride
    else:
        at = (x.start + i) * drafts.stride
    return get_value(drafts.given.tokens + at, mask, -1).to(tl.int64)


@triton.jit
def index_of(side, drafts, x, i):
    """Return the index of position i among all positions. A request has G + extra of them, or g + extra if ragged."""
    if drafts.given.cu_draft is None:
        return x.b * (drafts.G + side.extra) + i
    else:
        return x.start + x.b * side.extra + i


@triton.jit
def row_at(side, drafts, x, i, there):
    """Return the row of a position, and the index of its stats."""
    index = index_of(side, drafts, x, i)
    if side.store.row is None:
        return (i + x.b * 0 if drafts.given.cu_draft is None else index), index
    else:
        row = number_of(side.store, index, there)
        return row, (index if side.store.OF_POSITIONS else row)


@triton.jit
def has_number(side, drafts, x, i, there):
    """Return whether a position has a row. An index of -1 means that it has none; any other index counts, even one out
    of range."""
    if side.store.row is None:
        return there
    else:
        return there & (number_of(side.store, index_of(side, drafts, x, i), there) != -1)


@triton.jit
def dist_at(side, drafts, x, i, there, token, S):
    """Return the distributions at positions i: that of the row where `there` is set, else one-hot at `token`.

    A row index of -1 means one-hot too. Any other index out of range gives no distribution."""
    if side.data is None:
        return one_hot(token)
    else:
        row, index = row_at(side, drafts, x, i, there)
        if side.store.row is not None:
            token = tl.where(row == -1, token, -1)
            there = there & names_row(side.store, row)
        d = dist(side, x.b, seen(side.views, row, i), index, there, False, S)
        return Dist(d.row, tl.where(there, d.hot, token), d.stats)


@triton.jit
def fault_of(q, q_d, valid):
    """Return the status bits of a draft with distribution q. Without a distribution the draft is invalid, not the
    row."""
    return tl.where(is_draft_prob(q_d), 0, INVALID_DRAFT) | tl.where(
        valid, 0, tl.where(is_something(q), INVALID_ROW, INVALID_DRAFT)
    )


@triton.jit
def test_drafts(drafts, x, exists, target, draft, random, POSITIONS: tl.constexpr, S):
    i = tl.arange(0, POSITIONS).to(tl.int64)[None, :]
    inside = exists[:, None] & (i < x.g[:, None])
    each = Request(x.b[:, None], x.start[:, None], x.g[:, None])
    d = load_drafts(drafts, each, i, inside)
    drafted = inside & (d >= 0) & (d < widest(target, draft))  # an id outside both vocabularies ends the drafts
    p = dist_at(target, drafts, each, i, drafted, d * 0 - 1, S)
    p_d, log_p = prob(target, each.b, p, d, drafted)
    valid = is_valid(target, p) & (p_d == p_d)  # NaN here means that a probability row is invalid
    q = dist_at(draft, drafts, each, i, drafted, tl.where(drafted, d, -1), S)
    if draft.data is None:
        q_d = tl.full(d.shape, 1.0, tl.float64)
        q_valid = drafted
    else:
        q_d, _ = prob(draft, each.b, q, d, drafted)
        q_valid = is_valid(draft, q)
    u = uniform_of(random, each.b, i, drafts.G + 1, DOMAIN_ACCEPT, i, drafted)
    # A greedy target accepts only its argmax, whatever q is.
    accepted = drafted & valid & tl.where(p.hot >= 0, d == p.hot, accept_test(p_d, q_d, u))
    stop = tl.min(tl.where(accepted, POSITIONS, i), 1)
    n = tl.minimum(stop, x.g)
    rejected = drafted & valid & (p.hot < 0) & (i == n[:, None])
    status = tl.max(tl.where(rejected, fault_of(q, q_d, q_valid), 0), 1)
    removed = tl.max((rejected & q_valid).to(tl.int32), 1) > 0
    return DraftTest(d, log_p, n, removed, status)


@triton.jit
def put_accepted(drafts, x, test, bonus_stride, V, exists, out, POSITIONS: tl.constexpr):
    """Write the tokens of a test up to where it stopped, and the padding. After the last draft, the caller's bonus
    token is written if there is one."""
    i = tl.arange(0, POSITIONS)[None, :]
    token = tl.where(i <= test.n[:, None], test.d, -1)
    log_p = tl.where(i <= test.n[:, None], test.log_p, 0.0)
    status = test.status
    if drafts.given.bonus_tokens is not None:
        given = exists & (test.n == x.g)
        bonus = tl.load(drafts.given.bonus_tokens + x.b * bonus_stride, mask=given, other=0).to(tl.int64)
        status = status | tl.where((bonus < 0) | (bonus >= V), INVALID_BONUS, 0)
        last = given[:, None] & (i == test.n[:, None])
        token = tl.where(last, tl.maximum(bonus, 0)[:, None], token)
        log_p = tl.where(last, float("nan"), log_p)  # there is no row to take it from
    at = x.b[:, None] * (drafts.G + 1) + i
    row = exists[:, None] & (i <= drafts.G)
    tl.store(out.tokens + at, token, mask=row)
    tl.store(out.logprobs + at, log_p.to(tl.float32), mask=row)
    tl.store(out.num_accepted + x.b, test.n.to(tl.int32), mask=exists)
    tl.store(out.status + x.b, status, mask=exists)


@triton.jit
def end_race(drafts, B, count, bonus_stride, V, lost, out, POSITIONS: tl.constexpr, S):
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (b < B) & is_present(count, b)
    x = request_of(drafts, b, exists)
    i = tl.arange(0, POSITIONS).to(tl.int64)[None, :]
    drafted = exists[:, None] & (i < x.g[:, None])
    d = load_drafts(drafts, Request(b[:, None], x.start[:, None], x.g[:, None]), i, drafted)
    has_row = drafted
    if drafts.given.bonus_tokens is None:
        has_row = exists[:, None] & (i <= x.g[:, None])
    at = b[:, None] * (drafts.G + 1) + i
    token = tl.load(out.tokens + at, mask=has_row, other=-1).to(tl.int64)
    log_p = tl.load(out.logprobs + at, mask=has_row, other=0.0)
    is_lost = tl.load(lost + at, mask=has_row, other=0)
    tl.debug_barrier()  # put_accepted() writes the memory read above
    accepted = drafted & (d == token) & (is_lost == 0)
    n = tl.minimum(tl.min(tl.where(accepted, POSITIONS, i), 1), x.g)
    status = tl.max(tl.where(i == n[:, None], is_lost * INVALID_ROW, 0), 1)
    put_accepted(drafts, x, DraftTest(token, log_p, n, None, status), bonus_stride, V, exists, out, POSITIONS)


@launch.kernel
def end_race_kernel(
    B, count, G, D, token_batch_stride, token_stride, bonus_stride, given, V, lost, out,
    POSITIONS: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Find where each request stops, and write its results. `out` holds the winners of all positions."""
    end_race(Drafts(given, token_batch_stride, token_stride, G, D), B, count, bonus_stride, V, lost, out, POSITIONS, S)

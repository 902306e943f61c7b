# SPDX-License-Identifier: Apache-2.0
"""verify_chain without rules, in two launches: where each request stops, with the chunks of (p - q)+ there; and its
last token."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core import launch
from ..core.final_token import EMPTY_RESIDUAL, INVALID_BONUS, INVALID_ROW, aim, has_mass, hit, total_mass
from ..core.padded import is_present
from ..core.philox import DOMAIN_FINAL, uniform_of
from ..core.row import LOG2E, chunks_of, finite_max, is_bad, scaled, some
from ..core.rows import entries, is_something, is_valid, prob, without
from .draft_test import Drafts, dist_at, index_of, load_drafts, request_of, test_drafts


class Stop(NamedTuple):
    """Where requests stop."""

    removes: Any  # [B]: whether a rejected draft leaves (p - q)+
    masses: Any  # [B, chunks] of (p - q)+, then of p
    p_masses: Any
    maxes: Any  # [B, chunks]: the largest finite entries of p's row


@triton.jit
def serves(out, b, exists):
    """Whether a request is none of a rule's."""
    if out.by_rule is None:
        return exists
    else:
        return exists & (tl.load(out.by_rule + b, mask=exists, other=1) == 0)


@triton.jit
def put_accepted(drafts, x, test, bonus_stride, V, draws, exists, out, removes, POSITIONS: tl.constexpr):
    """What is known before the last token is drawn: the drafts that stay, and a bonus token that was given."""
    last_token = test.n * 0
    status = test.status
    if drafts.given.bonus_tokens is not None:
        given = exists & ~draws
        bonus = tl.load(drafts.given.bonus_tokens + x.b * bonus_stride, mask=given, other=0).to(tl.int64)
        status = status | tl.where((bonus < 0) | (bonus >= V), INVALID_BONUS, 0)
        last_token = tl.maximum(bonus, 0)
    i = tl.arange(0, POSITIONS)[None, :]
    taken = i < test.n[:, None]
    last = i == test.n[:, None]  # the bonus token, whose row was not given, or what final_kernel puts in its place
    at = x.b[:, None] * (drafts.G + 1) + i
    row = exists[:, None] & (i <= drafts.G)
    log_p = tl.where(taken, test.log_p, tl.where(last, float("nan"), 0.0)).to(tl.float32)
    tl.store(out.tokens + at, tl.where(taken, test.d, tl.where(last, last_token[:, None], -1)), mask=row)
    tl.store(out.logprobs + at, log_p, mask=row)
    tl.store(out.num_accepted + x.b, test.n.to(tl.int32), mask=exists)
    tl.store(out.status + x.b, status, mask=exists)
    tl.store(removes + x.b, test.removed.to(tl.int32), mask=exists)


@triton.jit
def put_masses(target, draft, b, index, p, q, reads, takes, c, stop, draws, S):
    """Chunk c of p and of (p - q)+, and its largest entry. Where the sums of p itself are at hand, only what q is taken
    from is read."""
    at = b * chunks_of(target) + c
    z, w = entries(target, b, p, tl.zeros([S.ROWS], tl.int32) + c, reads, False, S)
    p_mass = tl.sum(w, 1)
    if target.PROBS:
        p_mass = tl.where(is_bad(z), float("nan"), p_mass)
    largest = finite_max(z)
    if target.scratch.maxes is not None:
        held = draws & is_something(p) & (p.hot < 0) & ~reads
        known = index * chunks_of(target) + c
        m = tl.load(target.scratch.maxes + known, mask=held, other=0.0)
        s = tl.load(target.scratch.sums + known, mask=held, other=0.0)
        share = s * tl.exp2(scaled(m, p.stats.max, p.stats.scale * LOG2E) - p.stats.log_norm * LOG2E)
        p_mass = tl.where(held, tl.where(s == 0, 0.0, share), p_mass)
        largest = tl.where(held, m, largest)
    mass = p_mass
    if some(takes):
        _, x = entries(draft, b, q, tl.zeros([S.ROWS], tl.int32) + c, takes, True, S)
        r = without(w, q, x, tl.zeros([S.ROWS], tl.int32) + c, S)
        mass = tl.where(takes & (p_mass == p_mass), tl.sum(r, 1), p_mass)
    tl.store(stop.p_masses + at, p_mass, mask=draws)
    tl.store(stop.masses + at, mass, mask=draws)
    tl.store(stop.maxes + at, largest, mask=draws)


@triton.jit
def stop_at(drafts, B, count, target, draft, random, bonus_stride, out, stop, per_program, POSITIONS: tl.constexpr, S):
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = serves(out, b, (b < B) & is_present(count, b))
    x = request_of(drafts, b, exists)
    test = test_drafts(drafts, x, exists, target, draft, random, POSITIONS, S)
    draws = exists
    if drafts.given.bonus_tokens is not None:
        draws = exists & (test.n < x.g)
    first = tl.program_id(1) * per_program
    if first == 0:
        put_accepted(drafts, x, test, bonus_stride, target.V, draws, exists, out, stop.removes, POSITIONS)
    p = dist_at(target, drafts, x, test.n, draws, b * 0 - 1, S)
    d = tl.sum(tl.where(tl.arange(0, POSITIONS)[None, :] == test.n[:, None], test.d, 0), 1)
    takes = draws & test.removed & (p.hot < 0)
    q = dist_at(draft, drafts, x, test.n, takes, tl.where(takes, d, -1), S)
    reads = draws & (p.hot < 0)
    if target.scratch.maxes is not None:
        reads = reads & test.removed
    index = index_of(target, drafts, x, test.n)
    chunks = chunks_of(target)
    for c in range(first, tl.minimum(first + per_program, chunks)):
        put_masses(target, draft, b, index, p, q, reads, takes, c, stop, draws, S)


@launch.kernel
def stop_kernel(
    B, count, G, D, token_batch_stride, token_stride, bonus_stride, given, target, draft, random, out, stop,
    per_program, POSITIONS: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    stop_at(
        Drafts(given, token_batch_stride, token_stride, G, D), B, count, target, draft, random, bonus_stride, out, stop,
        per_program, POSITIONS, S,
    )  # fmt: skip


@triton.jit
def draw_last(drafts, B, count, target, draft, random, out, stop, S):
    """The last token: from (p - q)+ where a draft was rejected, from p otherwise or where nothing is left of it."""
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = serves(out, b, (b < B) & is_present(count, b))
    x = request_of(drafts, b, exists)
    n = tl.load(out.num_accepted + b, mask=exists, other=0).to(tl.int64)
    draws = exists
    if drafts.given.bonus_tokens is not None:
        draws = exists & (n < x.g)
    removed = draws & (tl.load(stop.removes + b, mask=exists, other=0) > 0)
    p = dist_at(target, drafts, x, n, draws, b * 0 - 1, S)
    sure = p.hot >= 0
    summed = draws & ~sure & is_valid(target, p)
    chunks = chunks_of(target)
    at = b * chunks
    total = total_mass(stop.masses, at, chunks, summed, S)
    p_total = total_mass(stop.p_masses, at, chunks, summed, S)
    rest = summed & removed & has_mass(total)
    whole = summed & ~rest & has_mass(p_total)
    found = rest | whole
    lost = draws & ~sure & ~found

    u = uniform_of(random, b, drafts.G, drafts.G + 1, DOMAIN_FINAL, b * 0, exists)
    which = at + tl.where(rest, 0, B * chunks)  # p_masses lie behind masses
    aimed = aim(stop.masses, which, stop.maxes, at, chunks, u * tl.where(rest, total, p_total), found, lost, S)
    z, w = entries(target, b, p, aimed.chunk, found | lost, False, S)
    if some(rest):
        d = load_drafts(drafts, x, n, rest)
        q = dist_at(draft, drafts, x, n, rest, tl.where(rest, d, -1), S)
        _, y = entries(draft, b, q, aimed.chunk, rest, True, S)
        w = tl.where(rest[:, None], without(w, q, y, aimed.chunk, S), w)
    token = tl.where(sure, p.hot, hit(aimed, z, w, found, lost, S))
    _, log_p = prob(target, b, p, token, found)
    log_p = tl.where(lost, float("nan"), log_p)
    to = b * (drafts.G + 1) + n
    tl.store(out.tokens + to, token, mask=draws)
    tl.store(out.logprobs + to, log_p.to(tl.float32), mask=draws)
    bits = tl.where(whole & removed, EMPTY_RESIDUAL, 0) | tl.where(lost, INVALID_ROW, 0)
    tl.store(out.status + b, tl.load(out.status + b, mask=draws, other=0) | bits, mask=draws)


@launch.kernel
def final_kernel(
    B, count, G, D, token_batch_stride, token_stride, given, target, draft, random, out, stop, S: tl.constexpr
):  # fmt: skip
    draw_last(Drafts(given, token_batch_stride, token_stride, G, D), B, count, target, draft, random, out, stop, S)

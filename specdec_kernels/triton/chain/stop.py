# SPDX-License-Identifier: Apache-2.0
"""The first launch of verify_chain: where each request stops, and the chunks of (p - q)+ there."""

import triton.language as tl

from ..core import launch
from .draft_test import INVALID_BONUS, judge, requests, row_of
from ..core.row import LOG2E, finite_max, is_bad, is_greedy, load_law, scaled
from ..core.weights import p_weights, subtract


@launch.kernel
def stop_kernel(
    B, G, cu_draft, D, draft_tokens, token_batch_stride, token_stride, bonus_tokens, bonus_stride,
    target, V, target_batch_stride, target_row_stride, target_extra, target_stats, target_maxes, target_sums,
    draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats,
    seed, seed_stride, offset, offset_stride, uniforms, by_rule, tokens, num_accepted, logprobs, status, removes,
    p_masses, masses, maxes, chunks, per_program,
    TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr, POSITIONS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    RAGGED: tl.constexpr = cu_draft is not None
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = b < B
    if by_rule is not None:
        exists = exists & (tl.load(by_rule + b, mask=exists, other=1) == 0)
    start, g = requests(b, exists, G, cu_draft, D)
    d, log_p, n, removed, state = judge(
        b, exists, start, g, B, G, draft_tokens, token_batch_stride, token_stride, target, V, target_batch_stride, target_row_stride,
        target_extra, target_stats, draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats, seed, seed_stride, offset,
        offset_stride, uniforms, TARGET_PROBS, DRAFT_PROBS, RAGGED, POSITIONS,
    )  # fmt: skip
    first = tl.program_id(1) * per_program
    draws = exists
    if bonus_tokens is not None:
        draws = exists & (n < g)
    if first == 0:
        i = tl.arange(0, POSITIONS)[None, :]
        taken = i < n[:, None]
        last_token = n * 0
        if bonus_tokens is not None:
            bonus = tl.load(bonus_tokens + b * bonus_stride, mask=exists & ~draws, other=0).to(tl.int64)
            state = state | tl.where((bonus < 0) | (bonus >= V), INVALID_BONUS, 0)
            last_token = tl.maximum(bonus, 0)
        at = b[:, None] * (G + 1) + i
        last = i == n[:, None]  # the bonus token, whose row was not given, or what draw_kernel puts in its place
        row = exists[:, None] & (i <= G)
        tl.store(tokens + at, tl.where(taken, d, tl.where(last, last_token[:, None], -1)), mask=row)
        tl.store(logprobs + at, tl.where(taken, log_p, tl.where(last, float("nan"), 0.0)).to(tl.float32), mask=row)
        tl.store(num_accepted + b, n.to(tl.int32), mask=exists)
        tl.store(status + b, state, mask=exists)
        tl.store(removes + b, removed.to(tl.int32), mask=exists)

    index, row = row_of(b, start, n, G, target_extra, target_batch_stride, target_row_stride, RAGGED)
    q_index, q_row = row_of(b, start, n, G, draft_extra, draft_batch_stride, draft_row_stride, RAGGED)
    d_n = tl.sum(tl.where(tl.arange(0, POSITIONS)[None, :] == n[:, None], d, 0), 1)
    scale = tl.full([ROWS], 1.0, tl.float32)
    cutoff = scale
    log_norm = scale
    most = scale
    reads = draws
    if not TARGET_PROBS:
        scale, cutoff, log_norm, most = load_law(target_stats, index, draws)
        reads = draws & ~is_greedy(scale, log_norm, V)
    held = reads & False  # the sums at hand are those of p itself: a plain draw reads only one chunk again
    if target_maxes is not None:
        held = reads & ~removed
        reads = reads & removed
    for step in range(first, tl.minimum(first + per_program, chunks)):
        c = tl.zeros([ROWS], tl.int32) + step
        z, w = p_weights(target, row, V, scale, cutoff, log_norm, most, c, reads, TARGET_PROBS, WIDTH)
        p_mass = tl.sum(w, 1)
        if TARGET_PROBS:
            p_mass = tl.where(is_bad(z), float("nan"), p_mass)
        largest = finite_max(z)
        if target_maxes is not None:
            m = tl.load(target_maxes + index * chunks + step, mask=held, other=0.0)
            s = tl.load(target_sums + index * chunks + step, mask=held, other=0.0)
            share = s * tl.exp2(scaled(m, most, scale * LOG2E) - log_norm * LOG2E)
            p_mass = tl.where(held, tl.where(s == 0, 0.0, share), p_mass)
            largest = tl.where(held, m, largest)
        mass = p_mass
        if tl.max((reads & removed).to(tl.int32)) > 0:
            r = subtract(w, draft, q_row, Vq, draft_stats, q_index, d_n, c, reads & removed, DRAFT_PROBS, WIDTH)
            mass = tl.where(p_mass == p_mass, tl.sum(r, 1), p_mass)
        tl.store(p_masses + b * chunks + step, p_mass, mask=draws)
        tl.store(masses + b * chunks + step, mass, mask=draws)
        tl.store(maxes + b * chunks + step, largest, mask=draws)

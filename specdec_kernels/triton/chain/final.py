# SPDX-License-Identifier: Apache-2.0
"""The second launch of verify_chain: the last token of each request."""

import triton
import triton.language as tl

from ..core import launch
from ..core.final_token import has_mass, pick_chunk, pick_lane, total_mass
from .draft_test import EMPTY_RESIDUAL, INVALID_ROW, requests, row_of
from ..core.row import CHUNK, first_chunk_with, first_lane_with, is_greedy, load_law, log_prob
from ..core.philox import DOMAIN_FINAL, given_uniform, uniform
from ..core.weights import p_weights, subtract


@triton.jit
def largest_of(maxes, at, chunks, alive, ROWS: tl.constexpr, CHUNKS: tl.constexpr):
    most = tl.full([ROWS], -float("inf"), tl.float32)
    for begin in range(0, chunks, CHUNKS):
        c = begin + tl.arange(0, CHUNKS)[None, :]
        m = tl.load(maxes + at[:, None] + c, mask=(c < chunks) & alive[:, None], other=-float("inf"))
        most = tl.maximum(most, tl.max(m, 1))
    return most


@launch.kernel
def final_kernel(
    B, G, cu_draft, D, draft_tokens, token_batch_stride, token_stride, target, V, target_batch_stride, target_row_stride, target_extra,
    target_stats, draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats, seed, seed_stride, offset, offset_stride,
    uniforms, by_rule, tokens, num_accepted, logprobs, status, removes, p_masses, masses, maxes, chunks, BONUS: tl.constexpr,
    TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """The last token: from (p - q)+ where a draft was rejected, from p otherwise or where nothing is left of it."""
    RAGGED: tl.constexpr = cu_draft is not None
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = b < B
    if by_rule is not None:
        exists = exists & (tl.load(by_rule + b, mask=exists, other=1) == 0)
    start, g = requests(b, exists, G, cu_draft, D)
    n = tl.load(num_accepted + b, mask=exists, other=0).to(tl.int64)
    draws = exists
    if BONUS:
        draws = exists & (n < g)
    removed = draws & (tl.load(removes + b, mask=exists, other=0) > 0)
    index, row = row_of(b, start, n, G, target_extra, target_batch_stride, target_row_stride, RAGGED)
    scale = tl.full([ROWS], 1.0, tl.float32)
    cutoff = scale
    log_norm = scale
    most = scale
    greedy = draws & False
    if not TARGET_PROBS:
        scale, cutoff, log_norm, most = load_law(target_stats, index, draws)
        greedy = draws & is_greedy(scale, log_norm, V)
    summed = draws & ~greedy & (log_norm == log_norm)
    at = b * chunks
    total = total_mass(masses, at, chunks, summed, ROWS, CHUNKS)
    p_total = total_mass(p_masses, at, chunks, summed, ROWS, CHUNKS)
    rest = summed & removed & has_mass(total)
    whole = summed & ~rest & has_mass(p_total)
    lost = draws & ~greedy & ~rest & ~whole

    if uniforms is not None:
        u = given_uniform(tl.load(uniforms + b * (G + 1) + G, mask=exists, other=0.0))
    elif seed is not None:
        s = tl.load(seed + b * seed_stride, mask=exists, other=0).to(tl.int64)
        o = tl.load(offset + b * offset_stride, mask=exists, other=0).to(tl.int64)
        u = uniform(s, o, DOMAIN_FINAL, b * 0)
    else:
        u = tl.zeros([ROWS], tl.float64)
    # Three arrays, one after the other: masses, p_masses, maxes.
    which = at + tl.where(rest, 0, B * chunks)
    c, into, mass = pick_chunk(masses, which, chunks, u * tl.where(rest, total, p_total), rest | whole, ROWS, CHUNKS)
    largest = tl.zeros([ROWS], tl.float32)
    if tl.max(lost.to(tl.int32)) > 0:
        largest = largest_of(maxes, at, chunks, lost, ROWS, CHUNKS)
        c = tl.where(lost, first_chunk_with(maxes, at, chunks, largest, lost, ROWS, CHUNKS), c)
    z, w = p_weights(target, row, V, scale, cutoff, log_norm, most, c, rest | whole | lost, TARGET_PROBS, WIDTH)
    if tl.max(rest.to(tl.int32)) > 0:
        d_at = (start + n) * token_stride if RAGGED else b * token_batch_stride + n * token_stride
        d = tl.load(draft_tokens + d_at, mask=rest, other=-1).to(tl.int64)
        q_index, q_row = row_of(b, start, n, G, draft_extra, draft_batch_stride, draft_row_stride, RAGGED)
        r = subtract(w, draft, q_row, Vq, draft_stats, q_index, d, c, rest, DRAFT_PROBS, WIDTH)
        w = tl.where(rest[:, None], r, w)
    lane = tl.where(lost, first_lane_with(z, largest, WIDTH), pick_lane(w, into, mass, WIDTH))
    token = tl.where(greedy, tl.where(greedy, log_norm, 0.0).to(tl.int64), c.to(tl.int64) * CHUNK + lane)
    z_token = tl.load(target + row + token, mask=rest | whole, other=1.0).to(tl.float32)
    if TARGET_PROBS:
        logprob = tl.log(z_token.to(tl.float64))
    else:
        logprob = log_prob(z_token, scale, cutoff, log_norm, most)
    logprob = tl.where(greedy, 0.0, tl.where(lost, float("nan"), logprob))
    tl.store(tokens + b * (G + 1) + n, token, mask=draws)
    tl.store(logprobs + b * (G + 1) + n, logprob.to(tl.float32), mask=draws)
    bits = tl.where(whole & removed, EMPTY_RESIDUAL, 0) | tl.where(lost, INVALID_ROW, 0)
    tl.store(status + b, tl.load(status + b, mask=draws, other=0) | bits, mask=draws)

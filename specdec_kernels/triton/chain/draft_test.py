# SPDX-License-Identifier: Apache-2.0
"""The walk of one request, all positions at once: where the drafts stop, and why (csrc/ops/verify_chain/verify_chain.h)."""

import triton
import triton.language as tl

from ..accept import accept_test, is_draft_prob
from ..core.row import clean_prob, is_greedy, load_law, log_prob, span
from ..core.philox import DOMAIN_ACCEPT, given_uniform, uniform

INVALID_ROW = tl.constexpr(1)
EMPTY_RESIDUAL = tl.constexpr(2)
INVALID_DRAFT = tl.constexpr(4)
INVALID_BONUS = tl.constexpr(8)


@triton.jit
def requests(b, exists, G, cu_draft, D):
    """Of the requests b: the index of the first draft in a ragged call, and how many drafts there are."""
    if cu_draft is None:
        return b * 0, (b * 0 + G).to(tl.int32)
    else:
        start, g = span(cu_draft, b, G, D, exists)
        return start, g


@triton.jit
def row_of(b, start, i, G, extra, batch_stride, row_stride, RAGGED: tl.constexpr):
    """Index and offset of row i of the requests b: G + extra rows each, or g + extra one after the other if ragged."""
    if RAGGED:
        index = start + b * extra + i
        return index, index * row_stride
    else:
        return b * (G + extra) + i, b * batch_stride + i * row_stride


@triton.jit
def gathered(rows, V, stats, index, offset, d, mask, PROBS: tl.constexpr):
    """p of the tokens d under the rows at `index`: p and ln p in float64, whether the row is a law, whether it is greedy."""
    z = tl.load(rows + offset + d, mask=mask & (d < V), other=0.0).to(tl.float32)
    if PROBS:
        p = tl.where(d < V, clean_prob(z), 0.0).to(tl.float64)
        return p, tl.log(p), mask, mask & False, d * 0
    else:
        scale, cutoff, log_norm, most = load_law(stats, index, mask)
        greedy = is_greedy(scale, log_norm, V)
        hot = tl.where(greedy, log_norm, -1.0).to(tl.int64)
        x = tl.where(d < V, log_prob(z, scale, cutoff, log_norm, most), -float("inf"))
        x = tl.where(greedy, tl.where(d == hot, 0.0, -float("inf")), x)
        return tl.exp(x), x, log_norm == log_norm, greedy, hot


@triton.jit
def judge(
    b, exists, start, g, B, G, draft_tokens, token_batch_stride, token_stride, target, V, target_batch_stride, target_row_stride,
    target_extra, target_stats, draft, Vq, draft_batch_stride, draft_row_stride, draft_extra, draft_stats, seed, seed_stride, offset,
    offset_stride, uniforms, TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr, RAGGED: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """The drafts d and ln p of each [ROWS, POSITIONS], how many are accepted, whether what was rejected leaves (p - q)+, the status."""
    i = tl.arange(0, POSITIONS).to(tl.int64)[None, :]
    inside = exists[:, None] & (i < g[:, None])
    request = b[:, None]
    at = (start[:, None] + i) * token_stride if RAGGED else request * token_batch_stride + i * token_stride
    d = tl.load(draft_tokens + at, mask=inside, other=-1).to(tl.int64)
    ids = V if draft is None else tl.maximum(V, Vq)
    drafted = inside & (d >= 0) & (d < ids)  # the first other id ends the draft
    index, row = row_of(request, start[:, None], i, G, target_extra, target_batch_stride, target_row_stride, RAGGED)
    p, log_p, valid, greedy, hot = gathered(target, V, target_stats, index, row, d, drafted, TARGET_PROBS)
    valid &= p == p  # a probability row that is no law, as this entry alone tells
    if draft is None:
        q = tl.full(p.shape, 1.0, tl.float64)
        q_valid = drafted
    else:
        index, row = row_of(request, start[:, None], i, G, draft_extra, draft_batch_stride, draft_row_stride, RAGGED)
        q, _, q_valid, _, _ = gathered(draft, Vq, draft_stats, index, row, d, drafted, DRAFT_PROBS)
    if uniforms is not None:
        u = given_uniform(tl.load(uniforms + request * (G + 1) + i, mask=drafted, other=0.0))
    elif seed is not None:
        s = tl.load(seed + b * seed_stride, mask=exists, other=0).to(tl.int64)[:, None]
        o = tl.load(offset + b * offset_stride, mask=exists, other=0).to(tl.int64)[:, None]
        u = uniform(s + i * 0, o + i * 0, DOMAIN_ACCEPT, i + request * 0)
    else:
        u = tl.zeros(p.shape, tl.float64)
    # A greedy target never reads q.
    accepted = drafted & valid & tl.where(greedy, d == hot, accept_test(p, q, u))
    stop = tl.min(tl.where(accepted, POSITIONS, i), 1)
    n = tl.minimum(stop, g.to(tl.int64))
    rejected = drafted & valid & ~greedy & (i == n[:, None])
    bits = tl.where(is_draft_prob(q), 0, INVALID_DRAFT) | tl.where(q_valid, 0, INVALID_ROW)
    status = tl.max(tl.where(rejected, bits, 0), 1)
    removed = tl.max((rejected & q_valid).to(tl.int32), 1) > 0
    return d, log_p, n, removed, status

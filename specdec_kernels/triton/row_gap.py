# SPDX-License-Identifier: Apache-2.0
"""row_gap: how far a draft's row is from the target's, and how sure each of them is (csrc/ops/row_gap/row_gap.h). One pass over both."""

import torch
import triton
import triton.language as tl

from .core import check
from .core import launch
from .core.row import LOG2E, finite_max, is_bad, is_greedy, load_law, scaled, weight_of
from .core.pair import Dist, Side, Sizes, chunks_of, draft_chunk, law_chunk, load


@triton.jit
def law_of_row(stats, n, stride, V):
    offset = n * stride
    if stats is None:
        one = tl.full([], 1.0, tl.float32)
        return Dist(n >= 0, offset, n * 0 - 1, one, one, one, one)
    else:
        scale, cutoff, log_norm, most = load_law(stats, n, n >= 0)
        greedy = is_greedy(scale, log_norm, V)
        return Dist(n >= 0, offset, tl.where(greedy, tl.where(greedy, log_norm, 0.0).to(tl.int64), -1), scale, cutoff, log_norm, most)


@triton.jit
def sureness(side, d, z, S):
    """Of a tile: its part of the entropy, its largest entry, and whether the row is no law."""
    if side.PROBS:
        normal = (z >= 1.1754943508222875e-38) & (z < float("inf"))
        x = tl.where(normal, z, 1.0)
        part = -x * tl.log(x)
        bad = tl.max(is_bad(z).to(tl.int32), 0) > 0
    else:
        x = tl.maximum(scaled(z, d.most, tl.where(d.hot >= 0, 1.0, d.scale)), -100.0)  # below it exp(x) is nothing, and x must be finite
        part = tl.where(z >= d.cutoff, weight_of(x * LOG2E) * -x, 0.0)
        bad = d.log_norm != d.log_norm
    return tl.sum(tl.sum(part, 1).to(tl.float64), 0), tl.max(finite_max(z), 0), bad


@triton.jit
def sure(side, d, parts, top, bad):
    """The entropy and the largest probability of a row."""
    nan = float("nan")
    if side.PROBS:
        lost = bad | ~(top > 0)
        return tl.where(lost, nan, parts), tl.where(lost, nan, top.to(tl.float64))
    else:
        log_norm = d.log_norm.to(tl.float64)
        norm = tl.exp(-log_norm)
        return tl.where(d.hot >= 0, 0.0, log_norm + parts * norm), tl.where(d.hot >= 0, 1.0, norm)


@triton.jit
def row_gap_of(n, target, draft, p_stride, q_stride, gaps, S):
    p = law_of_row(target.stats, n, p_stride, target.V)
    q = law_of_row(draft.stats, n, q_stride, draft.V)
    tv = tl.full([], 0.0, tl.float64)
    overlap = tv
    of_q = tv
    p_parts = tv
    q_parts = tv
    p_top = tl.full([], 0.0, tl.float32)
    q_top = p_top
    p_bad = n < 0
    q_bad = p_bad
    for begin in range(0, chunks_of(tl.maximum(target.V, draft.V)), S.TOGETHER):
        c = begin + tl.arange(0, S.TOGETHER)
        z = load(target, p, c, True, -float("inf"), S)
        x = law_chunk(target, p, z, c, False, S)
        z_q, y = draft_chunk(draft, q, c, True, S)
        tv += tl.sum(tl.sum(tl.maximum(x - y, 0.0), 1).to(tl.float64), 0)
        overlap += tl.sum(tl.sum(tl.minimum(x, y), 1).to(tl.float64), 0)
        if draft.PROBS:
            of_q += tl.sum(tl.sum(y, 1).to(tl.float64), 0)
        part, top, bad = sureness(target, p, z, S)
        p_parts += part
        p_top = tl.maximum(p_top, top)
        p_bad |= bad
        part, top, bad = sureness(draft, q, z_q, S)
        q_parts += part
        q_top = tl.maximum(q_top, top)
        q_bad |= bad
    entropy_p, max_p = sure(target, p, p_parts, p_top, p_bad)
    entropy_q, max_q = sure(draft, q, q_parts, q_top, q_bad)
    lost = ~((max_p > 0) & (max_q > 0))
    if draft.PROBS:
        lost |= ~(of_q > 0)
    out = gaps + n * 6
    tl.store(out, tl.where(lost, float("nan"), tv).to(tl.float32))
    tl.store(out + 1, tl.where(lost, float("nan"), overlap).to(tl.float32))
    tl.store(out + 2, entropy_p.to(tl.float32))
    tl.store(out + 3, entropy_q.to(tl.float32))
    tl.store(out + 4, max_p.to(tl.float32))
    tl.store(out + 5, max_q.to(tl.float32))


@launch.kernel
def row_gap_kernel(
    p, V, p_stride, p_stats, q, Vq, q_stride, q_stats, gaps, PROBS: tl.constexpr, TOGETHER: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    # A tuple that is assigned loses its constants, so these go straight into the call.
    row_gap_of(
        tl.program_id(0).to(tl.int64), Side(p, V, 0, p_stride, 0, p_stats, PROBS), Side(q, Vq, 0, q_stride, 0, q_stats, PROBS),
        p_stride, q_stride, gaps, Sizes(TOGETHER, WIDTH, 1),
    )  # fmt: skip


def row_gap(p, q, p_stats, q_stats):
    op = "row_gap"
    check.given(op, p=p, q=q)
    N, p_rows, q_rows = check.row_pair(op, p, q)
    check.pair_stats(op, p_stats, q_stats, N, p)
    gaps = torch.empty((N, 6), dtype=torch.float32, device=p.device)
    if N:
        table = launch.table(max(p_rows.V, q_rows.V))
        launch.run(
            row_gap_kernel, (N,), table.walk_threads, p, p_rows.V, p_rows.row_stride, p_stats, q, q_rows.V, q_rows.row_stride, q_stats,
            gaps, PROBS=p_stats is None, TOGETHER=table.at_once, WIDTH=table.width,
        )  # fmt: skip
    return gaps

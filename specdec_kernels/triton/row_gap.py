# SPDX-License-Identifier: Apache-2.0
"""row_gap: the distance between a draft's row and the target's, and the confidence of each, in one pass over both
(csrc/ops/row_gap/row_gap.h)."""

import triton
import triton.language as tl

from .core import launch
from .core.arguments import row_pair
from .core.ids import chunks_of_both
from .core.row import LOG2E, chunks_from, each, each_request, finite_max, is_bad, max_of, scaled, sum_of, weight_of
from .core.rows import each_dist, entries
from .row_stats import dist


@triton.jit
def sureness(side, d, z, w, S):
    """Return a tile's part of the sum for the entropy, its largest finite entry, and whether it shows that the row is
    invalid.

    z: entries; w: probabilities. In rows with ids of their own, entries of one id add up, so these rows are measured by
    w."""
    if side.PROBS or side.ids.numbers is not None:
        bad = d.stats.log_norm != d.stats.log_norm
        if side.PROBS:
            w = z
            bad = max_of(is_bad(z).to(tl.int32), S) > 0
        z = w
        x = tl.where((z >= 1.1754943508222875e-38) & (z < float("inf")), z, 1.0)
        part = -x * tl.log(x)
    else:
        scale = tl.where(d.hot >= 0, 1.0, d.stats.scale)
        x = scaled(z, each(d.stats.max, S)[:, None], each(scale, S)[:, None])
        x = tl.maximum(x, -100.0)  # below that its weight is 0; the bound keeps their product finite
        part = tl.where(z >= each(d.stats.cutoff, S)[:, None], weight_of(x * LOG2E) * -x, 0.0)
        bad = d.stats.log_norm != d.stats.log_norm
    return sum_of(part, S), max_of(finite_max(z), S), bad


@triton.jit
def sure(side, d, parts, top, bad):
    """Return the entropy and the largest probability of a row."""
    nan = float("nan")
    if side.PROBS or side.ids.numbers is not None:
        lost = bad | ~(top > 0)
        return tl.where(lost, nan, parts), tl.where(lost, nan, top.to(tl.float64))
    else:
        log_norm = d.stats.log_norm.to(tl.float64)
        norm = tl.exp(-log_norm)
        return tl.where(d.hot >= 0, 0.0, log_norm + parts * norm), tl.where(d.hot >= 0, 1.0, norm)


@launch.kernel
def row_gap_kernel(target, draft, gaps, S: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    p = dist(target, n, n * 0, n, n >= 0, False, S)
    q = dist(draft, n, n * 0, n, n >= 0, False, S)
    p_c, q_c = each_dist(p, S), each_dist(q, S)
    tv = tl.full([S.ROWS], 0.0, tl.float64)
    overlap = tv
    of_q = tv
    p_parts = tv
    q_parts = tv
    p_top = tl.full([S.ROWS], 0.0, tl.float32)
    q_top = p_top
    p_bad = n < 0
    q_bad = p_bad
    for begin in range(0, chunks_of_both(target, draft, n, q), S.TOGETHER):
        c = chunks_from(begin, S)
        z, x = entries(target, each_request(S), p_c, c, c >= 0, False, S)
        z_q, y = entries(draft, each_request(S), q_c, c, c >= 0, True, S)
        tv += sum_of(tl.maximum(x - y, 0.0), S)
        overlap += sum_of(tl.minimum(x, y), S)
        if draft.PROBS:
            of_q += sum_of(y, S)
        part, top, bad = sureness(target, p, z, x, S)
        p_parts += part
        p_top = tl.maximum(p_top, top)
        p_bad |= bad
        part, top, bad = sureness(draft, q, z_q, y, S)
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


def row_gap(gaps, p, p_stats, q, q_stats, q_ids):
    if N := p.size(0):
        sides, table = row_pair(p, p_stats, q, q_stats, q_ids)
        at_once = table.at_once if q_ids is None else max(1, table.at_once // 2)  # the search for ids takes registers
        sizes = table.sizes(ROWS=1, TOGETHER=at_once)
        launch.run(row_gap_kernel, (N,), table.walk_threads, *sides, gaps, S=sizes)

# SPDX-License-Identifier: Apache-2.0
"""kseq_rho: a program per pair of rows makes all passes of the search, and finds the pair in the cache from the second
one on."""

import torch
import triton.language as tl

from .core import check, launch
from .core.kseq import Pairs, kseq_search
from .core.row import load_value
from .core.row_stats import dist


@launch.kernel
def kseq_rho_kernel(target, draft, k, rho, beta, p_acc, N, S: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = n < N
    drafts = load_value(k, n, exists, 1).to(tl.int64)
    p = dist(target, n, n * 0, n, exists, False, S)
    q = dist(draft, n, n * 0, n, exists, False, S)
    found = kseq_search(Pairs(target, draft, n, p, q, None, None), drafts, exists, S)
    tl.store(rho + n, found[0], mask=exists)
    tl.store(beta + n, found[1], mask=exists)
    tl.store(p_acc + n, found[2], mask=exists)


def kseq_rho(p, p_stats, q, q_stats, k):
    op = "kseq_rho"
    check.given(op, p=p, q=q, k=k)
    N, p_rows, q_rows = check.row_pair(op, p, p_stats, q, q_stats)
    k = check.per_row(op, "k", k, N, p)
    if p.device.type == "cpu":
        for n, drafts in enumerate(k.data.expand(N).tolist()):
            check.that(drafts >= 1, op, f"k must be >= 1, got {drafts} at index {n}")

    rho, beta, p_acc = (torch.empty(N, dtype=torch.float64, device=p.device) for _ in range(3))
    if N:
        table = launch.table(max(p_rows.V, q_rows.V))
        together = min(table.rows, 128)  # a program is as slow as the slowest of its searches
        sides = (launch.rows(r, s is None, s) for r, s in ((p_rows, p_stats), (q_rows, q_stats)))
        grid = (launch.blocks(N, together),)
        args = (*sides, k, rho, beta, p_acc, N)
        launch.run(kseq_rho_kernel, grid, table.row_threads, *args, S=table.sizes(ROWS=together, TOGETHER=1))
    return rho, beta, p_acc

# SPDX-License-Identifier: Apache-2.0
"""kseq_rho: a program per pair of rows makes all passes of the search, and finds the pair in the cache from the second
one on."""

import triton.language as tl

from .core import launch
from .core.arguments import row_pair, values
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
    found = kseq_search(Pairs(target, draft, n, p, q), drafts, exists, S)
    tl.store(rho + n, found[0], mask=exists)
    tl.store(beta + n, found[1], mask=exists)
    tl.store(p_acc + n, found[2], mask=exists)


def kseq_rho(results, p, p_stats, q, q_stats, k):
    if N := p.size(0):
        table = launch.table(max(p.size(1), q.size(1)))
        together = min(table.rows, 128)  # a program is as slow as the slowest of its searches
        args = (*row_pair(p, p_stats, q, q_stats), values(k), *results, N)
        grid = (launch.blocks(N, together),)
        launch.run(kseq_rho_kernel, grid, table.row_threads, *args, S=table.sizes(ROWS=together, TOGETHER=1))

# SPDX-License-Identifier: Apache-2.0
"""kseq_rho: a program per pair of rows makes all passes of the search, and finds the pair in the cache from the second one on."""

import torch
import triton.language as tl

from .core import check
from .core import launch
from .core.kseq import kseq_search


@launch.kernel
def kseq_rho_kernel(
    p, p_stride, V, p_stats, q, q_stride, Vq, q_stats, k, k_stride, rho, beta, p_acc, N, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = n < N
    drafts = tl.load(k + n * k_stride, mask=exists, other=1).to(tl.int64)
    found = kseq_search(p, n * p_stride, V, p_stats, n, q, n * q_stride, Vq, q_stats, n, drafts, exists, ROWS, WIDTH)
    tl.store(rho + n, found[0], mask=exists)
    tl.store(beta + n, found[1], mask=exists)
    tl.store(p_acc + n, found[2], mask=exists)


def kseq_rho(p, q, k, p_stats, q_stats):
    op = "kseq_rho"
    check.given(op, p=p, q=q, k=k)
    N, p_rows, q_rows = check.row_pair(op, p, q)
    k, k_stride = check.per_row(op, "k", k, N, p)
    check.pair_stats(op, p_stats, q_stats, N, p)
    if p.device.type == "cpu":
        for n, drafts in enumerate(k.expand(N).tolist()):
            check.that(drafts >= 1, op, f"k must be >= 1, got {drafts} at index {n}")

    rho, beta, p_acc = (torch.empty(N, dtype=torch.float64, device=p.device) for _ in range(3))
    if N:
        table = launch.table(max(p_rows.V, q_rows.V))
        rows = (p, p_rows.row_stride, p_rows.V, p_stats, q, q_rows.row_stride, q_rows.V, q_stats)
        together = min(table.rows, 128)  # a program is as slow as the slowest of its searches
        sizes = {"ROWS": together, "WIDTH": table.width}
        launch.run(kseq_rho_kernel, (launch.blocks(N, together),), table.row_threads, *rows, k, k_stride, rho, beta, p_acc, N, **sizes)
    return rho, beta, p_acc

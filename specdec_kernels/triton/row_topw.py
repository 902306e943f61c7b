# SPDX-License-Identifier: Apache-2.0
"""row_topw (csrc/ops/row_topw/row_topw.h): the launches of row_stats find the largest logit of each chunk, an upper
bound of its entries. Then core/best_ids.py finds the best ids."""

import torch
import triton.language as tl

from .core import launch
from .core.arguments import seen_rows
from .core.best_ids import best_orders, hot_of, id_of_order, is_flat, order_of, score_of, worth_of, worth_of_order
from .core.memory import is_present
from .core.row import CHUNK, chunks_of
from .row_stats import find_stats, scan


@launch.kernel
def bound_chunks_kernel(rows, score, N, num_rows, best, BLOCK: tl.constexpr):
    """Write `best` [N, chunks]: the worth of each chunk's largest logit, as the order of the chunk's first id."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    chunks = chunks_of(rows)
    n = at // chunks
    exists = (n < N) & is_present(num_rows, n)
    z = tl.load(rows.scratch.maxes + at, mask=exists, other=0.0)
    worth = tl.reshape(worth_of(rows, score, n, z[:, None], exists), [BLOCK])
    tl.store(best + at, order_of(worth, (at - n * chunks) * CHUNK), mask=n < N)


@launch.kernel
def put_best_kernel(rows, score, N, num_rows, found, w, scores, ids, BLOCK: tl.constexpr):
    """Turn the orders `found` [N, w] into scores and ids. Rows that needed no search (is_flat) get theirs directly."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = at // w
    i = at - n * w
    exists = (n < N) & is_present(num_rows, n)
    order = tl.load(found + at, mask=exists, other=0)
    flat = is_flat(rows, score, n, exists)
    hot, own = hot_of(rows, n, exists), score_of(rows, score, n, exists)
    place = tl.where(own > -float("inf"), 0, hot)  # of a greedy row's argmax: first, or by id if all worths are equal
    behind = tl.where(i - 1 < hot, i - 1, i)
    is_hot = (hot >= 0) & (i == place)
    id = tl.where((hot < 0) | (i < place), i, tl.where(is_hot, hot, behind))
    id = tl.where(flat, id, id_of_order(order))
    worth = tl.where(is_hot, own, own + -float("inf"))
    worth = tl.where(flat, worth, worth_of_order(order))
    tl.store(ids + at, tl.where(exists, id, -1), mask=n < N)
    tl.store(scores + at, tl.where(exists, worth + 0.0, 0.0), mask=n < N)


def row_topw(results, logits, stats, score, w, num_rows, views, drafted):
    N, rows = logits.size(0), seen_rows(logits, views, drafted)
    if N and w:
        layout, table = launch.Layout.flat(N, num_rows), launch.table(rows.V)
        if stats is None:
            stats, scratch = find_stats(rows, layout, launch.NO_SAMPLING)
        else:
            scratch = scan(rows, layout, launch.NO_SAMPLING, stats)
        side = launch.rows(rows, stats=stats, scratch=scratch)
        best = launch.empty(rows, (N, table.chunk_count), torch.int64)
        args = (side, score, N, num_rows)
        launch.run_elements(bound_chunks_kernel, best.numel(), *args, best)
        found = best_orders(side, score, table, N, num_rows, w, best)
        launch.run_elements(put_best_kernel, N * w, *args, found, w, *results)

# SPDX-License-Identifier: Apache-2.0
"""top_logprobs (csrc/ops/top_logprobs/top_logprobs.h): a wide launch finds the best id of each chunk and counts ranks.
Then core/best_ids.py finds the best ids. Their log-probabilities, and those of the given tokens, are gathered last."""

import torch
import triton
import triton.language as tl

from .core import launch
from .core.arguments import contiguous, seen_rows
from .core.best_ids import best_orders, id_of_order, orders
from .core.memory import is_present
from .core.row import chunks_of, is_greedy, load_entry, load_stats, log_prob, row_seen


@triton.jit
def logit_of(rows, n, id, inside):
    return load_entry(rows, n, row_seen(rows, n), id, inside, float("nan"))


@launch.kernel
def scan_orders_kernel(rows, N, num_rows, tokens, m, best, ranks, per_program, S: tl.constexpr):
    """Write the largest sort key (order_of in core/best_ids.py: logit, then id) of every chunk. Add to each token's
    rank the number of the chunk's ids whose logits are at least the token's."""
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (n < N) & is_present(num_rows, n)
    chunks = chunks_of(rows)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        order, z = orders(rows, None, n, tl.zeros([S.ROWS], tl.int32) + c, exists, S)
        tl.store(best + n * chunks + c, tl.max(order, 1), mask=n < N)
        if tokens is not None:
            for j in range(0, m):
                id = tl.load(tokens + n * m + j, mask=exists, other=-1).to(tl.int64)
                least = logit_of(rows, n, id, (id >= 0) & (id < rows.V))
                count = tl.sum((z >= least[:, None]).to(tl.int32), 1)
                tl.atomic_add(ranks + n * m + j, count.to(tl.int64), mask=exists & (count > 0), sem="relaxed")


@launch.kernel
def put_logprobs_kernel(
    rows, N, num_rows, source, k, ids, logprobs, ORDERS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write ln p of the ids in `source` [N, k]. ORDERS: `source` holds sort keys; their ids go to `ids`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = at // k
    exists = (n < N) & is_present(num_rows, n)
    id = tl.load(source + at, mask=exists, other=0).to(tl.int64)
    if ORDERS:
        id = id_of_order(id)
        tl.store(ids + at, tl.where(exists, id, -1), mask=n < N)
    inside = exists & (id >= 0) & (id < rows.V)
    stats = load_stats(rows.stats, n, exists)
    hot = is_greedy(stats, rows.V)
    at_hot = id == tl.where(hot, stats.log_norm, -1.0).to(tl.int64)
    x = tl.where(stats.log_norm == stats.log_norm, log_prob(logit_of(rows, n, id, inside), stats), float("nan"))
    x = tl.where(hot, tl.where(at_hot, 0.0, -float("inf")).to(tl.float64), x)
    x = tl.where(inside, x, tl.where(exists, -float("inf"), 0.0).to(tl.float64))
    tl.store(logprobs + at, x.to(tl.float32), mask=n < N)


def put_logprobs(rows, N, num_rows, source, ids, logprobs):
    args = (rows, N, num_rows, source, source.size(1), ids, logprobs)
    launch.run_elements(put_logprobs_kernel, source.numel(), *args, ORDERS=ids is not None)


def top_logprobs(results, logits, stats, k, tokens, num_rows, views, drafted):
    ids, logprobs, token_logprobs, token_ranks = results
    N, m = token_ranks.shape
    tokens = contiguous(tokens)
    token_ranks.zero_()
    if N and k + m:
        rows, table = seen_rows(logits, views, drafted), launch.table(logits.size(1))
        side = launch.rows(rows, stats=stats)
        best = launch.empty(rows, (N, table.chunk_count), torch.int64)
        launch.run_chunks(scan_orders_kernel, table, N, side, N, num_rows, tokens, m, best, token_ranks)
        if k:
            put_logprobs(side, N, num_rows, best_orders(side, None, table, N, num_rows, k, best), ids, logprobs)
        if m:
            put_logprobs(side, N, num_rows, tokens, None, token_logprobs)

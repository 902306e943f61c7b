# SPDX-License-Identifier: Apache-2.0
"""support (csrc/ops/support/support.h). One launch packs a bit for each id: whether it is kept. Another one lists the
kept ids, if the caller wants any of them."""

import torch
import triton.language as tl

from .core import launch
from .core.arguments import seen_rows, values
from .core.memory import is_present, load_value
from .core.row import CHUNK, chunks_of, is_greedy, lane_of, load_chunk, load_stats, row_seen

WORD = tl.constexpr(32)


@launch.kernel
def put_bits_kernel(rows, N, index, M, num_rows, words, bits, kept, per_program, S: tl.constexpr):
    """Pack the bits of every chunk, and write the number of set bits to `kept` [M, chunks]."""
    i = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (i < M) & is_present(num_rows, i)
    n = i
    if index.data is not None:
        n = load_value(index, i, exists, -1).to(tl.int64)
    exists &= (n >= 0) & (n < N)
    n = tl.where(exists, n, 0)
    stats = load_stats(rows.stats, n, exists)
    greedy = exists & is_greedy(stats, rows.V)
    hot = tl.where(greedy, stats.log_norm, -1.0).to(tl.int64)
    sampled = exists & ~greedy & (stats.log_norm == stats.log_norm)
    chunks = chunks_of(rows)
    BITS: tl.constexpr = WORD if S.WIDTH >= WORD else S.WIDTH
    bit = tl.arange(0, BITS)[None, None, :]
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        each_c = tl.zeros([S.ROWS], tl.int32) + c
        z = load_chunk(rows, n, row_seen(rows, n), each_c, sampled, float("nan"), S)
        one = tl.arange(0, S.WIDTH)[None, :] == lane_of(hot, each_c)[:, None]
        keeps = ((z >= stats.cutoff[:, None]) | one).to(tl.int32)
        packed = tl.sum(tl.reshape(keeps, [S.ROWS, S.WIDTH // BITS, BITS]) << bit, 2)
        w = c * (CHUNK // WORD) + tl.arange(0, S.WIDTH // BITS)[None, :]
        tl.store(bits + (i * words)[:, None] + w, packed, mask=(i < M)[:, None] & (w < words))
        tl.store(kept + i * chunks + c, tl.sum(keeps, 1), mask=i < M)


@launch.kernel
def list_ids_kernel(bits, words, kept, upto, M, chunks, ids, max_kept, per_program, S: tl.constexpr):
    """List the first max_kept ids whose bits are set. upto [M, chunks]: the number of ids kept up to the end of each
    chunk."""
    i = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    lane = tl.arange(0, S.WIDTH)[None, :]
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        count = tl.load(kept + i * chunks + c, mask=i < M, other=0)
        before = tl.load(upto + i * chunks + c, mask=i < M, other=0) - count
        here = (count > 0) & (before < max_kept)
        w = c * (CHUNK // WORD) + lane // WORD
        word = tl.load(bits + (i * words)[:, None] + w, mask=here[:, None] & (w < words), other=0)
        keeps = word >> (lane % WORD) & 1
        place = before[:, None] + tl.cumsum(keeps, 1) - 1
        id = c * CHUNK + lane + tl.zeros_like(place)
        tl.store(ids + (i * max_kept)[:, None] + place, id, mask=(keeps == 1) & (place < max_kept))


def support(results, logits, stats, row, max_kept, num_rows, views, drafted):
    ids, counts, bits = results
    M, words = bits.shape
    rows, table = seen_rows(logits, views, drafted), launch.table(logits.size(1))
    kept = launch.empty(rows, (M, table.chunk_count), torch.int32)
    args = (launch.rows(rows, stats=stats), logits.size(0), values(row), M, num_rows, words, bits, kept)
    launch.run_chunks(put_bits_kernel, table, M, *args)
    upto = kept.cumsum(1, dtype=torch.int32)
    ids.fill_(-1)
    counts.copy_(upto[:, -1])
    if max_kept:
        launch.run_chunks(list_ids_kernel, table, M, bits, words, kept, upto, M, table.chunk_count, ids, max_kept)

# SPDX-License-Identifier: Apache-2.0
"""residual: norm((p - q)+) of rows. One launch sums the chunks, and a second one writes the results."""

import torch
import triton
import triton.language as tl

from .core import launch
from .core.arguments import INTEGERS, row_memory
from .core.draw import first_chunk_with, first_lane_with, has_mass, largest_of, total_mass
from .core.memory import Values, is_present, load_value, some
from .core.row import CHUNK, Dist, chunks_of, finite_max, is_bad
from .core.rows import entries, no_stats, one_hot, without


@triton.jit
def weights(target, draft, ids, n, c, exists, S):
    """Return chunk c of the rows n: p's entries, p's weights, and (p - q)+."""
    c = tl.zeros([S.ROWS], tl.int32) + c
    row = Dist(n * 0, n * 0 - 1, no_stats(n))
    q = row
    if ids.data is not None:
        q = one_hot(load_value(ids, n, exists, -1).to(tl.int64))
    z, w = entries(target, n, row, c, exists, False, S)
    _, x = entries(draft, n, q, c, exists, True, S)
    return z, w, without(w, q, x, c, S)


@launch.kernel
def residual_sums_kernel(target, draft, ids, N, count, p_sums, sums, maxes, per_program, S: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = (n < N) & is_present(count, n)
    chunks = chunks_of(target)
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z, w, r = weights(target, draft, ids, n, c, exists, S)
        bad = is_bad(z)
        at = n * chunks + c
        tl.store(p_sums + at, tl.where(bad, float("nan"), tl.sum(w, 1)), mask=exists)
        tl.store(sums + at, tl.where(bad, float("nan"), tl.sum(r, 1)), mask=exists)
        tl.store(maxes + at, finite_max(z), mask=exists)


@launch.kernel
def residual_write_kernel(target, draft, ids, N, count, p_sums, sums, maxes, probs, mass, per_program, S: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    within = n < N
    exists = within & is_present(count, n)
    chunks = chunks_of(target)
    total = total_mass(sums, n * chunks, chunks, exists, S)
    p_total = total_mass(p_sums, n * chunks, chunks, exists, S)
    first = tl.program_id(1) * per_program
    tl.store(mass + n, total, mask=within & (n * 0 + first == 0))
    rest = has_mass(total)
    lost = ~rest & ~has_mass(p_total)  # p is invalid: the result is one-hot at p's largest finite entry
    inverse = 1.0 / tl.where(rest, total, tl.where(lost, 1.0, p_total))
    most = tl.full([S.ROWS], -float("inf"), tl.float32)
    hot = tl.zeros([S.ROWS], tl.int32)
    if some(lost & exists):
        most = largest_of(maxes, n * chunks, chunks, exists, S)
        hot = first_chunk_with(maxes, n * chunks, chunks, most, exists, S)
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z, w, r = weights(target, draft, ids, n, c, exists, S)
        out = (tl.where(rest[:, None], r, w).to(tl.float64) * inverse[:, None]).to(tl.float32)
        lane = tl.arange(0, S.WIDTH)[None, :]
        inside = c * CHUNK + lane < target.V
        one = (hot == c)[:, None] & (lane == first_lane_with(z, most, S)[:, None])
        out = tl.where(lost[:, None], tl.where(one & exists[:, None], 1.0, 0.0), out)
        tl.store(probs + (n * target.V + c * CHUNK)[:, None] + lane, out, mask=inside & within[:, None])


def residual(results, p, q, num_rows):
    N, V = p.shape
    one_hot = q.dtype in INTEGERS
    ids = Values(q.contiguous(), True) if one_hot else launch.NO_VALUES
    draft = launch.NO_ROWS if one_hot else launch.rows(row_memory(q), probs=True)
    if N:
        table = launch.table(V)
        scratch = torch.empty((3, N, table.chunk_count), dtype=torch.float32, device=p.device)
        args = (launch.rows(row_memory(p), probs=True), draft, ids, N, num_rows, *scratch)
        launch.run_chunks(residual_sums_kernel, table, N, *args)
        launch.run_chunks(residual_write_kernel, table, N, *args, *results)

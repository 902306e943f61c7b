# SPDX-License-Identifier: Apache-2.0
"""residual: norm((p - q)+) as a row. One launch sums the chunks, one writes them."""

import torch
import triton
import triton.language as tl

from .core import check
from .core import launch
from .core.final_token import has_mass, total_mass
from .core.row import CHUNK, clean_p, clean_q, finite_max, first_chunk_with, first_lane_with, is_bad, lane_of, load_chunk


@triton.jit
def weights(p, p_stride, q, q_stride, n, c, V, Vq, exists, IDS: tl.constexpr, WIDTH: tl.constexpr):
    """Chunk c [ROWS] of the rows n: p as it is, its weights, and (p - q)+."""
    z = load_chunk(p, n * p_stride, V, c, exists, -float("inf"), WIDTH)
    w = clean_p(z)
    if IDS:
        hot = tl.load(q + n * q_stride, mask=exists, other=-1).to(tl.int64)
        return z, w, tl.where(tl.arange(0, WIDTH)[None, :] == lane_of(hot, c)[:, None], 0.0, w)
    else:
        taken = clean_q(load_chunk(q, n * q_stride, Vq, c, exists, 0.0, WIDTH))
        return z, w, tl.maximum(w - taken, 0.0)


@launch.kernel
def residual_sums_kernel(
    p, p_stride, q, q_stride, N, V, Vq, p_sums, sums, maxes, chunks, per_program, IDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = n < N
    first = tl.program_id(1) * per_program
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z, w, r = weights(p, p_stride, q, q_stride, n, tl.zeros([ROWS], tl.int32) + c, V, Vq, exists, IDS, WIDTH)
        bad = is_bad(z)
        at = n * chunks + c
        tl.store(p_sums + at, tl.where(bad, float("nan"), tl.sum(w, 1)), mask=exists)
        tl.store(sums + at, tl.where(bad, float("nan"), tl.sum(r, 1)), mask=exists)
        tl.store(maxes + at, finite_max(z), mask=exists)


@launch.kernel
def residual_write_kernel(
    p, p_stride, q, q_stride, N, V, Vq, p_sums, sums, maxes, chunks, per_program, probs, mass,
    IDS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = n < N
    total = total_mass(sums, n * chunks, chunks, exists, ROWS, CHUNKS)
    p_total = total_mass(p_sums, n * chunks, chunks, exists, ROWS, CHUNKS)
    first = tl.program_id(1) * per_program
    tl.store(mass + n, total, mask=exists & (n * 0 + first == 0))
    rest = has_mass(total)
    lost = ~rest & ~has_mass(p_total)  # no law: one-hot at the largest finite entry
    inverse = 1.0 / tl.where(rest, total, tl.where(lost, 1.0, p_total))
    most = tl.full([ROWS], -float("inf"), tl.float32)
    hot = tl.zeros([ROWS], tl.int32)
    if tl.max((lost & exists).to(tl.int32)) > 0:
        for begin in range(0, chunks, CHUNKS):
            c = begin + tl.arange(0, CHUNKS)[None, :]
            m = tl.load(maxes + (n * chunks)[:, None] + c, mask=(c < chunks) & exists[:, None], other=-float("inf"))
            most = tl.maximum(most, tl.max(m, 1))
        hot = first_chunk_with(maxes, n * chunks, chunks, most, exists, ROWS, CHUNKS)
    for c in range(first, tl.minimum(first + per_program, chunks)):
        z, w, r = weights(p, p_stride, q, q_stride, n, tl.zeros([ROWS], tl.int32) + c, V, Vq, exists, IDS, WIDTH)
        out = (tl.where(rest[:, None], r, w).to(tl.float64) * inverse[:, None]).to(tl.float32)
        lane = tl.arange(0, WIDTH)[None, :]
        inside = c * CHUNK + lane < V
        one = (hot == c)[:, None] & (lane == first_lane_with(z, most, WIDTH)[:, None])
        out = tl.where(lost[:, None], tl.where(one, 1.0, 0.0), out)
        tl.store(probs + (n * V + c * CHUNK)[:, None] + lane, out, mask=inside & exists[:, None])


def residual(p, q):
    op = "residual"
    check.given(op, p=p, q=q)
    check.dim(op, "p", p, 2)
    N, V = p.shape
    check.rows(op, "p", p)
    ids = q.dtype in check.INTEGERS
    if ids:
        check.shape(op, "q", q, N)
    else:
        check.dim(op, "q", q, 2)
        check.rows(op, "q", q)
        check.shape(op, "q", q, N, q.size(1))
    check.device(op, "q", q, p)

    probs = torch.empty((N, V), dtype=torch.float32, device=p.device)
    mass = torch.empty(N, dtype=torch.float64, device=p.device)
    if N:
        table = launch.table(V)
        count = table.chunk_count
        p_sums, sums, maxes = torch.empty((3, N, count), dtype=torch.float32, device=p.device)
        per_program = table.per_program(N)
        grid = (launch.blocks(N, table.rows), launch.blocks(count, per_program))
        rows = (p, p.stride(0), q, q.stride(0), N, V, 0 if ids else q.size(1), p_sums, sums, maxes, count, per_program)
        sizes = {"IDS": ids, "ROWS": table.rows, "WIDTH": table.width}
        launch.run(residual_sums_kernel, grid, table.wide_threads, *rows, **sizes)
        launch.run(residual_write_kernel, grid, table.wide_threads, *rows, probs, mass, **sizes, CHUNKS=table.chunks)
    return probs, mass

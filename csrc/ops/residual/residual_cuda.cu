// SPDX-License-Identifier: Apache-2.0
// Two launches. The first sums (p - q)+ over each chunk, and the block of a row that finishes last adds up the sums of
// the row's chunks. The second writes the normalised rows.
#include "../../cuda/block_executor.cuh"
#include "residual.h"

namespace specdec {
namespace {

struct Rest {
  ResidualRows a;
  ChunkTable table;
  RowGrid grid;
  Outcome* outcomes = nullptr;  // [N]
};

__global__ void __launch_bounds__(kThreads, 3) masses(const Rest s) {
  const int64_t n = s.grid.row();
  if (!s.a.present.has(n)) return;
  __shared__ Uninitialised<Dist> shared[2];  // in shared memory: the passes over rows have no registers to spare
  if (threadIdx.x == 0) shared[0].get() = s.a.target(n), shared[1].get() = s.a.draft(n);
  __syncthreads();
  const Dist &p = shared[0].get(), &q = shared[1].get();
  float* sum = s.table.row(n, chunk_count(p.row.V)).sum;
  sum_chunks(p, q, special_chunks(p, q), s.grid.part(), s.grid.per_warp, nullptr, sum);
  if (!s.grid.last()) return;

  BlockExecutor executor(RowStats{}, sum, nullptr, BlockExecutor::kPair);
  double mass;
  const Outcome found = outcome(executor, p, q, mass);
  if (threadIdx.x == 0) s.a.mass[n] = mass, s.outcomes[n] = found;
}

__global__ void __launch_bounds__(kThreads, 3) normalise(const Rest s) {
  const int64_t n = s.grid.row(), V = s.a.p.V;
  const bool present = s.a.present.has(n);
  const Dist p = s.a.target(n);
  const Outcome outcome = present ? s.outcomes[n] : Outcome{0, V, false};  // hot = V: zeros only
  const Dist q = outcome.minus ? s.a.draft(n) : Dist{};
  float* out = s.a.probs + n * V;
  if (!present && s.grid.part() == 0 && threadIdx.x == 0) s.a.mass[n] = 0;
  for_chunks(chunk_count(V), s.grid.part(), s.grid.per_warp, [&](int64_t c) {
    if (outcome.hot < 0) return write_chunk(p, q, c, outcome.inverse, out);
    for (int64_t v = c * kChunk + threadIdx.x % kLanes; v < V && v < (c + 1) * kChunk; v += kLanes)
      out[v] = v == outcome.hot;
  });
}

}  // namespace

void run(const ResidualRows& a, const Tensor& like) {
  constexpr const char* kOp = "residual";
  const OnDeviceOf device(like);
  Scratch scratch;
  const RowGridRoom room(scratch, a.N, a.p.V, false);
  const size_t outcomes = scratch.ask<Outcome>(a.N);
  scratch.allocate(like);
  Rest s{a, {}, {}, scratch.at<Outcome>(outcomes)};
  room.take(kOp, scratch, device.stream, s.grid, s.table);
  SPECDEC_LAUNCH(kOp, masses, a.N * s.grid.blocks, device.stream, s);
  SPECDEC_LAUNCH(kOp, normalise, a.N * s.grid.blocks, device.stream, s);
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Warps reduce chunks of a row, wherever they run; the last block of a row to be done makes its four floats.
#include <torch/csrc/stable/library.h>

#include "../common/block_team.cuh"
#include "row_stats_op.h"

namespace specdec {
namespace {

struct Scan {
  RowStats a;
  ChunkTable table;
  int* arrived = nullptr;  // [N]
  int blocks = 1;          // per row
  int per_warp = 1;
};

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : 4) scan(const Scan s) {
  const int64_t n = blockIdx.x / s.blocks, chunks = chunk_count(s.a.logits.V);
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling[n];
  const ChunkTable table = s.table.row(n, chunks);
  scan_chunks(row, filters, int(blockIdx.x % s.blocks), s.per_warp, table);
  if (!last_block(s.arrived + n, s.blocks)) return;
  const Law law = block_law<kFiltered>(row, filters, table);
  if (threadIdx.x == 0) s.a.stats[n] = law;
}

void run(const RowStats& a, const Tensor& like) {
  const OnDeviceOf device(like);
  const int64_t chunks = chunk_count(a.logits.V);
  Scan s{a};
  s.per_warp = chunks_per_warp(a.N, chunks);
  s.blocks = blocks_per_row(chunks, s.per_warp);
  Scratch scratch;
  const size_t arrived = scratch.ask<int>(a.N);
  const TableRoom table(scratch, a.N, chunks, a.sampling.filters());
  scratch.allocate(like);
  s.arrived = scratch.at<int>(arrived), s.table = table.in(scratch);
  check_cuda("row_stats", cudaMemsetAsync(s.arrived, 0, a.N * sizeof(int), device.stream));
  if (a.sampling.filters())
    SPECDEC_LAUNCH("row_stats", scan<true>, a.N * s.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH("row_stats", scan<false>, a.N * s.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("row_stats", TORCH_BOX(&row_stats_op<run>)); }

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Warps reduce chunks of a row, wherever they run; the last block of a row to be done walks through its draws.
#include <torch/csrc/stable/library.h>

#include "../common/block_team.cuh"
#include "sample_op.h"

namespace specdec {
namespace {

struct Draws {
  Sample a;
  ChunkTable table;
  int* arrived = nullptr;  // [N]
  int blocks = 1;          // per row
  int per_warp = 1;
};

template <bool kFiltered>
__global__ void __launch_bounds__(kThreads, kFiltered ? 2 : 3) draws(const Draws s) {
  const int64_t n = blockIdx.x / s.blocks, chunks = chunk_count(s.a.logits.V);
  const int part = int(blockIdx.x % s.blocks);
  const Row row = s.a.logits.at(0, n);
  const Filters filters = s.a.sampling[n];
  const ChunkTable table = s.table.row(n, chunks);
  Dist q;
  if (s.a.stats_in) q = from_law(row, law_at(s.a.stats_in, n));
  if (q.kind == Kind::kLogits)
    sum_chunks(q, Dist{}, part, s.per_warp, nullptr, table.sum);
  else if (!s.a.stats_in)
    scan_chunks(row, filters, part, s.per_warp, table);
  if (!last_block(s.arrived + n, s.blocks)) return;

  Law law{};
  if (!s.a.stats_in) law = block_law<kFiltered>(row, filters, table);
  const bool held = s.a.stats_in || !filters.any(row.V);
  BlockTeam team(law, table.sum, s.a.stats_in ? nullptr : table.max, held ? BlockTeam::kPlain : BlockTeam::kNothingHeld);
  sample(team, s.a, n);
}

void run(const Sample& a, const Tensor& like) {
  const OnDeviceOf device(like);
  const int64_t chunks = chunk_count(a.logits.V);
  Draws s{a};
  s.per_warp = chunks_per_warp(a.N, chunks);
  s.blocks = blocks_per_row(chunks, s.per_warp);
  Scratch scratch;
  const size_t arrived = scratch.ask<int>(a.N);
  const TableRoom table(scratch, a.N, chunks, a.sampling.filters());
  scratch.allocate(like);
  s.arrived = scratch.at<int>(arrived), s.table = table.in(scratch);
  check_cuda("sample", cudaMemsetAsync(s.arrived, 0, a.N * sizeof(int), device.stream));
  if (a.sampling.filters())
    SPECDEC_LAUNCH("sample", draws<true>, a.N * s.blocks, device.stream, s);
  else
    SPECDEC_LAUNCH("sample", draws<false>, a.N * s.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("sample", TORCH_BOX(&sample_op<run>)); }

}  // namespace specdec

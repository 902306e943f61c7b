// SPDX-License-Identifier: Apache-2.0
// Two launches: chunk sums of (p - q)+, from which a row's last block takes its mass; then the normalised rows.
#include <torch/csrc/stable/library.h>

#include "../common/block_team.cuh"
#include "residual_op.h"

namespace specdec {
namespace {

// What a row's residual turned out to be: weights times `inverse`, or all mass on `hot` where no weights have mass.
struct Outcome {
  double inverse;
  int64_t hot;  // -1: weights
  bool minus;   // of (p - q)+, else of p
};

struct Rest {
  Residual a;
  float* sum = nullptr;         // [N, chunks]
  Outcome* outcomes = nullptr;  // [N]
  int* arrived = nullptr;       // [N]
  int blocks = 1;               // per row
  int per_warp = 1;
};

__global__ void __launch_bounds__(kThreads, 4) masses(const Rest s) {
  const int64_t n = blockIdx.x / s.blocks;
  const Dist p = s.a.target(n), q = s.a.draft(n);
  float* sum = s.sum + n * chunk_count(p.row.V);
  sum_chunks(p, q, int(blockIdx.x % s.blocks), s.per_warp, nullptr, sum);
  if (!last_block(s.arrived + n, s.blocks)) return;

  BlockTeam team(Law{}, sum, nullptr, BlockTeam::kPair);
  const double total = team.sum(p, q);
  Outcome outcome{1 / total, -1, true};
  if (!has_mass(total)) {
    const double p_total = team.sum(p, Dist{});
    outcome = {1 / p_total, has_mass(p_total) ? -1 : team.argmax_finite(p.row), false};
  }
  if (threadIdx.x == 0) s.a.mass[n] = total, s.outcomes[n] = outcome;
}

__global__ void __launch_bounds__(kThreads, 3) normalise(const Rest s) {
  const int64_t n = blockIdx.x / s.blocks, V = s.a.p.V;
  const Dist p = s.a.target(n);
  const Outcome outcome = s.outcomes[n];
  const Dist q = outcome.minus ? s.a.draft(n) : Dist{};
  float* out = s.a.probs + n * V;
  for_chunks(chunk_count(V), int(blockIdx.x % s.blocks), s.per_warp, [&](int64_t c) {
    if (outcome.hot < 0) return write_chunk(p, q, c, outcome.inverse, out);
    for (int64_t v = c * kChunk + threadIdx.x % kLanes; v < V && v < (c + 1) * kChunk; v += kLanes) out[v] = v == outcome.hot;
  });
}

void run(const Residual& a, const Tensor& like) {
  const OnDeviceOf device(like);
  const int64_t chunks = chunk_count(a.p.V);
  Rest s{a};
  s.per_warp = chunks_per_warp(a.N, chunks);
  s.blocks = blocks_per_row(chunks, s.per_warp);
  Scratch scratch;
  const size_t arrived = scratch.ask<int>(a.N), outcomes = scratch.ask<Outcome>(a.N), sum = scratch.ask<float>(a.N * chunks);
  scratch.allocate(like);
  s.arrived = scratch.at<int>(arrived), s.outcomes = scratch.at<Outcome>(outcomes), s.sum = scratch.at<float>(sum);
  check_cuda("residual", cudaMemsetAsync(s.arrived, 0, a.N * sizeof(int), device.stream));
  SPECDEC_LAUNCH("residual", masses, a.N * s.blocks, device.stream, s);
  SPECDEC_LAUNCH("residual", normalise, a.N * s.blocks, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("residual", TORCH_BOX(&residual_op<run>)); }

}  // namespace specdec

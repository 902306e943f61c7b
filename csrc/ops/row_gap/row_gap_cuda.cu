// SPDX-License-Identifier: Apache-2.0
// A block per pair of rows.
#include <torch/csrc/stable/library.h>

#include "../../cuda/mixture_executor.cuh"
#include "row_gap_op.h"

namespace specdec {
namespace {

struct Pairs {
  RowGap a;
  float* sum = nullptr;  // [N, chunks]
};

__global__ void __launch_bounds__(kThreads, 1) measure(const Pairs s) {
  const int64_t n = blockIdx.x, V = s.a.p.V > s.a.q.V ? s.a.p.V : s.a.q.V;
  ChunkTable table;
  table.sum = s.sum + n * chunk_count(V);
  MixtureExecutor executor(table);
  const Gap gap = row_gap(executor, s.a.target(n), s.a.draft(n));
  if (executor.leads()) s.a.write(n, gap);
}

void run(const RowGap& a, const Tensor& like) {
  const OnDeviceOf device(like);
  Scratch scratch;
  const size_t sum = scratch.ask<float>(a.N * chunk_count(std::max(a.p.V, a.q.V)));
  scratch.allocate(like);
  Pairs s{a, scratch.at<float>(sum)};
  SPECDEC_LAUNCH("row_gap", measure, a.N, device.stream, s);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(specdec, SPECDEC_CUDA_KEY, m) { m.impl("row_gap", TORCH_BOX(&row_gap_op<run>)); }

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// A sample kernel with cp.async: rows go through shared memory, and one stage is filled while another is read.
#include <cuda_pipeline.h>

#include "sample.h"

namespace sample {

namespace {

// out[b] = the sum of row b of x, one block per row. A thread reads what another thread copied.
__global__ void staged_sum(const float* x, int n, float* out, Defect defect) {
  __shared__ float4 stages[2][kThreads];
  __shared__ float warps[kThreads / 32];
  const int t = int(threadIdx.x);
  const float* row = x + int64_t(blockIdx.x) * n;
  const int groups = n / 4, turns = (groups + kThreads - 1) / kThreads;
  const auto copy = [&](int turn) {
    const int group = turn * kThreads + t;
    const float4* from = reinterpret_cast<const float4*>(row) + (group < groups ? group : 0);
    if (defect == Defect::copy_unaligned) from = reinterpret_cast<const float4*>(row + 1);
    void* to = &stages[turn % 2][t];
    if (defect == Defect::copy_to_memory) to = out;
    __pipeline_memcpy_async(to, from, sizeof *from, group < groups ? 0 : sizeof *from);
  };
  const auto commit = [&] {
    if (defect != Defect::copy_not_committed) __pipeline_commit();
  };
  copy(0);
  commit();
  float sum = 0;
  for (int turn = 0; turn < turns; ++turn) {
    if (turn + 1 < turns) copy(turn + 1);
    commit();  // an empty group in the last turn
    if (defect == Defect::copy_source_written && t == 9) const_cast<float*>(row)[36] = 1;
    if (defect == Defect::copy_waited_for_short)
      __pipeline_wait_prior(2);
    else if (defect != Defect::copy_not_waited_for)
      __pipeline_wait_prior(1);
    if (defect != Defect::copy_without_barrier) __syncthreads();
    const float4 v = stages[turn % 2][kThreads - 1 - t];
    sum += (v.x + v.y) + (v.z + v.w);
    if (defect != Defect::copy_over_readers) __syncthreads();  // the next copy goes to this stage
  }
  if (defect == Defect::copy_left) copy(0);
  sum = warp_sum(sum);
  if (t % 32 == 0) warps[t / 32] = sum;
  __syncthreads();
  if (t != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += warps[w];
  out[blockIdx.x] = sum;
}

}  // namespace

void run_staged_sum(const Call& c) {
  cuda_on_cpu::launch([] { return "staged_sum"; }, c.blocks, kThreads,
                      [=] { staged_sum(static_cast<const float*>(c.in), c.n, static_cast<float*>(c.out), c.defect); });
}

}  // namespace sample

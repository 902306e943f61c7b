// SPDX-License-Identifier: Apache-2.0
// Two sample kernels, of which the second begins while the first still runs.
#include "sample.h"

namespace sample {

namespace {

// parts[b] = the sum of row b of x
__global__ void row_sums(const float* x, int n, float* parts, Defect defect) {
  __shared__ float warps[kThreads / 32];
  const float* row = x + int64_t(blockIdx.x) * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += row[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (defect == Defect::loaded_by_the_first || defect == Defect::loaded_past_l1_before)
    sum += parts[blockIdx.x] - parts[blockIdx.x];
  for (int w = 1; w < kThreads / 32; ++w) sum += warps[w];
  parts[blockIdx.x] = sum;
}

// out[b] = parts[b] - x[b, 0]. The entry of x is read before this launch waits for the one that computes parts.
__global__ void less_first(const float* x, int n, const float* parts, float* out, Defect defect) {
  const int b = int(blockIdx.x), t = int(threadIdx.x);
  const float first = x[int64_t(b) * n];
  float part = 0;
  if (defect == Defect::read_before_wait) part = parts[b];
  if (defect == Defect::write_before_wait && t == 0) out[b] = first;
  if (defect != Defect::no_wait && (defect != Defect::wait_of_one || t == 0)) cuda_on_cpu::wait_for_launch();
  if (defect == Defect::wait_of_one) __syncthreads();
  if (defect == Defect::read_only_of_the_first)
    part = __ldg(parts + b);
  else if (defect == Defect::loaded_past_l1_before && t != 100)
    part = __ldcg(parts + b);
  else if (defect != Defect::read_before_wait)
    part = parts[b];
  if (t == 0) out[b] = part - first;
}

}  // namespace

void run_two_launches(const Call& c) {
  const auto* x = static_cast<const float*>(c.in);
  auto* parts = static_cast<float*>(c.scratch);
  cuda_on_cpu::launch([] { return "row_sums"; }, c.blocks, kThreads, [=] { row_sums(x, c.n, parts, c.defect); });
  cuda_on_cpu::launch([] { return "two_launches"; }, c.blocks, kThreads,
                      [=] { less_first(x, c.n, parts, static_cast<float*>(c.out), c.defect); },
                      cuda_on_cpu::After::the_beginning);
}

}  // namespace sample

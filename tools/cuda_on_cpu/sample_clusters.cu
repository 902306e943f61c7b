// SPDX-License-Identifier: Apache-2.0
// A sample kernel that runs in clusters of blocks.
#include "sample.h"

namespace sample {

namespace {

// Sums by a cluster: each block writes its part to the shared memory of all blocks, so all can compute the total.
__global__ void cluster_sum(const float* x, int n, float* out, int* stop, Defect defect) {
  __shared__ float warps[kThreads / 32];
  auto* parts = reinterpret_cast<float*>(cuda_on_cpu::dynamic_shared());  // [size]
  const auto sync = [] { cuda_on_cpu::meet_cluster("cluster_sync", cuda_on_cpu::Site::current()); };
  const int rank = cuda_on_cpu::cluster_rank(), size = cuda_on_cpu::cluster_size(), t = int(threadIdx.x);
  const auto put = [&](float value, int to) {
    void* mine = defect == Defect::static_shared ? warps : parts + rank;
    *static_cast<float*>(cuda_on_cpu::of_rank(mine, defect == Defect::no_such_rank ? size : to)) = value;
  };
  if (defect != Defect::no_first_sync) sync();
  float sum = 0;
  for (int i = rank * kThreads + t; i < n; i += size * kThreads) sum += x[i];
  sum = warp_sum(sum);
  if (t % 32 == 0) warps[t / 32] = sum;
  __syncthreads();
  if (t == 0) {
    for (int w = 1; w < kThreads / 32; ++w) sum += warps[w];
    for (int to = 0; to < size; ++to) put(sum, to);
  }
  if (defect == Defect::one_leaves && rank == 1) return;
  if (defect == Defect::stop_seen_by_some) {  // the first block that comes here stops those that come later
    if (__syncthreads_or(t == 0 && atomicAdd(stop, 1) > 0)) return;
  }
  if (defect != Defect::no_cluster_sync) sync();
  if (t != 0) return;
  for (int r = 0; r < size; ++r) sum = r ? sum + parts[r] : parts[0];
  if (rank == 0) out[blockIdx.x / unsigned(size)] = sum;
  if (defect == Defect::after_the_last_sync) put(sum, (rank + 1) % size);
}

}  // namespace

void run_cluster_sum(const Call& c) {
  constexpr int kSize = 4;
  auto* stop = static_cast<int*>(c.scratch);
  cudaMemsetAsync(stop, 0, sizeof *stop, nullptr);
  cuda_on_cpu::launch_clusters(
      [] { return "cluster_sum"; }, c.blocks, kSize, kThreads, kSize * sizeof(float),
      [=] { cluster_sum(static_cast<const float*>(c.in), c.n, static_cast<float*>(c.out), stop, c.defect); });
}

}  // namespace sample

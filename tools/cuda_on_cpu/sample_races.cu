// SPDX-License-Identifier: Apache-2.0
// Sample kernels in which several blocks, or several threads of a block, access one value. In each defect the access
// that races is followed by others of the same kind that do not.
#include "sample.h"

namespace sample {

namespace {

// out[0] = sum in[0 : gridDim.x - 1] * *cell. All blocks read *cell; the last one to finish sets it to 0.
__global__ void take_turns(const float* in, float* cell, unsigned* counter, float* out, Defect defect) {
  const unsigned b = blockIdx.x, others = gridDim.x - 1;
  if (threadIdx.x != 0) return;
  const float value = *cell;
  const bool apart = defect == Defect::one_reader_not_released;
  if (apart && b == 0) return;  // has read, and tells nobody
  __threadfence();
  const bool last = defect == Defect::readers_not_released ? b == others : atomicAdd(counter, 1) == others - apart;
  if (!last) {
    if (defect == Defect::read_after_release && *cell == 2) *out = 0;
    return;
  }
  float sum = 0;
  for (unsigned i = 0; i < others; ++i) sum += in[i];
  *out = sum * value;
  *cell = 0;
}

// out[0] = the number of threads, counted in shared memory.
__global__ void count_threads(int* out, Defect defect) {
  __shared__ int count;
  const int t = int(threadIdx.x);
  if (t == 0) count = 0;
  if (defect != Defect::set_beside_updates) __syncthreads();
  atomicAdd(&count, 1);
  if (defect != Defect::read_beside_updates) __syncthreads();
  if (t == kThreads - 2) *out = count;  // in ascending order the last thread to come here: the last of all passes first
}

// out[0] = the number of blocks, counted in the first block's shared memory. All blocks of the cluster read it, and
// then the last one sets it to 0.
__global__ void count_blocks(int* out, unsigned* updated, Defect defect) {
  int* const mine = reinterpret_cast<int*>(cuda_on_cpu::dynamic_shared());
  const auto sync = [] { cuda_on_cpu::meet_cluster("cluster_sync", cuda_on_cpu::Site::current()); };
  const int rank = cuda_on_cpu::cluster_rank(), size = cuda_on_cpu::cluster_size();
  const bool leads = threadIdx.x == 0;
  if (leads) *mine = 0;
  sync();
  int* const count = static_cast<int*>(cuda_on_cpu::of_rank(mine, 0));
  if (leads) atomicAdd(count, 1), atomicAdd(updated, 1);
  sync();
  if (leads && rank == 0) atomicAdd(updated, 1);
  if (defect != Defect::update_after_it_was_seen) sync();
  int sum = 0;
  if (leads && rank == size - 1) sum = int(*updated) - size - 1;
  if (leads) sum += *count;
  if (defect != Defect::read_by_ranks) sync();
  if (leads && rank == size - 1) *count = 0, *out = sum;
  sync();
}

}  // namespace

void run_take_turns(const Call& c) {
  auto* cell = static_cast<float*>(c.scratch);
  auto* counter = reinterpret_cast<unsigned*>(cell + 1);
  *cell = 1;
  *counter = 0;
  cuda_on_cpu::launch(
      [] { return "take_turns"; }, c.blocks, kThreads,
      [=] { take_turns(static_cast<const float*>(c.in), cell, counter, static_cast<float*>(c.out), c.defect); });
}

void run_count_threads(const Call& c) {
  cuda_on_cpu::launch([] { return "count_threads"; }, c.blocks, kThreads,
                      [=] { count_threads(static_cast<int*>(c.out), c.defect); });
}

void run_count_blocks(const Call& c) {
  constexpr int kSize = 4;
  auto* updated = static_cast<unsigned*>(c.scratch);
  *updated = 0;
  cuda_on_cpu::launch_clusters([] { return "count_blocks"; }, c.blocks, kSize, kThreads, sizeof(int),
                               [=] { count_blocks(static_cast<int*>(c.out), updated, c.defect); });
}

}  // namespace sample

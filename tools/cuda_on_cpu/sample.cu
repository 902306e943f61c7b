// SPDX-License-Identifier: Apache-2.0
// Small kernels that use the same patterns as ours. Most can be given a defect, which the harness must find.
#include <stdexcept>

#include "sample.h"

using namespace sample;

namespace {

// out[b] = ln sum exp x[b], one block for each row.
__global__ void log_sum_exp(const float* x, int n, float* out, Defect defect) {
  __shared__ float parts[kThreads / 32];
  const float* row = x + int64_t(blockIdx.x) * n;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) sum += __expf(row[i]);
  sum = warp_sum(sum);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0 && !(defect == Defect::uninitialised && warp == 3)) parts[warp] = sum;
  if (defect == Defect::early_exit && threadIdx.x == 77) return;
  if (defect == Defect::divergent_barrier) {
    if (warp == 0)
      __syncthreads();
    else if (warp > 0)
      __syncthreads();
  } else if (defect != Defect::no_barrier) {
    __syncthreads();
  }
  if (warp == 0) {
    sum = warp_sum(lane < kThreads / 32 ? parts[lane] : 0.f);
    if (lane == 0) out[blockIdx.x] = logf(sum);
  }
}

// Inclusive prefix sums of one block's 256 values.
__global__ void scan(const int* x, int* out, Defect defect) {
  __shared__ int totals[kThreads / 32];
  const int t = threadIdx.x, lane = t % 32;
  int sum = x[t];
  for (int o = 1; o < 32; o *= 2) {
    if (defect == Defect::divergent_shuffle) {
      if (lane >= o) sum += __shfl_up_sync(~0u, sum, o);
    } else {
      const int below = __shfl_up_sync(defect == Defect::half_mask ? 0xFFFFu : ~0u, sum, o);
      if (lane >= o) sum += below;
    }
  }
  if (defect == Defect::deadlock && t == 40) __syncthreads();
  if (defect == Defect::two_ways) sum += int(t % 2 ? warp_sum(0.f) : 0 + warp_sum(0.f));
  if (lane == 31) totals[t / 32] = sum;
  __syncthreads();
  for (int w = 0; w < t / 32; ++w) sum += totals[defect == Defect::out_of_bounds && w == 3 ? w + kThreads / 32 : w];
  if (defect == Defect::overflow) sum += INT32_MAX;
  out[t] = defect == Defect::float_to_int ? int(float(sum) * 1e9f) : sum;
}

// Sums over all blocks: each writes its part, and the last one to finish adds them up. Four floats are read at once.
__global__ void grid_sum(const float* x, int n, float* parts, unsigned* counter, float* out, Defect defect) {
  __shared__ float warps[kThreads / 32];
  __shared__ bool last;
  float sum = 0;
  const float* from = x + (defect == Defect::unaligned || defect == Defect::unaligned_plain);
  for (int i = 4 * (blockIdx.x * kThreads + threadIdx.x); i + 4 <= n; i += 4 * gridDim.x * kThreads) {
    const auto* p = reinterpret_cast<const float4*>(from + i);
    const float4 v = defect == Defect::unaligned_plain ? *p : __ldg(p);
    sum += (v.x + v.y) + (v.z + v.w);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) sum += warps[w];
    parts[blockIdx.x] = sum;
    if (defect != Defect::no_fence) __threadfence();
    last = defect == Defect::order       ? blockIdx.x == gridDim.x - 1  // assumes that blocks run in order
           : defect == Defect::no_atomic ? (*counter)++ == gridDim.x - 1
                                         : atomicAdd(counter, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x < 32) {
    sum = 0;
    for (unsigned b = threadIdx.x; b < gridDim.x; b += 32)
      sum += defect == Defect::through_l1  ? parts[b]
             : defect == Defect::read_only ? __ldg(parts + b)
                                           : __ldcg(parts + b);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) *out = sum;
  }
}

// Writes each thread's place in the schedule.
__global__ void turns(unsigned* counter, int* out) {
  out[blockIdx.x * kThreads + threadIdx.x] = int(atomicAdd(counter, 1));
}

// Compares warp and block intrinsics, and some functions of bits, with what each lane can compute without them.
__global__ void intrinsics(int* wrong) {
  const int lane = threadIdx.x % 32;
  int bad = 0;
  bad += __shfl_sync(~0u, lane * 3.5, 7) != 24.5;
  bad += __shfl_sync(~0u, lane, 9, 8) != (lane & ~7) + 1;
  bad += __shfl_up_sync(~0u, lane, 3) != (lane < 3 ? lane : lane - 3);
  bad += __shfl_down_sync(~0u, lane, 5, 16) != (lane % 16 + 5 < 16 ? lane + 5 : lane);
  bad += __shfl_xor_sync(~0u, (1ull << 40) + lane, 21) != (1ull << 40) + (lane ^ 21);
  bad += __ballot_sync(~0u, lane % 3 == 0) != 0x49249249u;
  bad += __any_sync(~0u, lane == 31) != 1;
  bad += __all_sync(~0u, lane < 31) != 0;
  bad += __syncthreads_count(threadIdx.x % 4 == 1) != kThreads / 4;
  bad += __syncthreads_or(threadIdx.x == 200) == 0;
  bad += __syncthreads_and(threadIdx.x != 200) != 0;
  bad += __popc(0xF0F0u) != 8 || __ffs(0) != 0 || __ffs(8) != 4 || __clz(1) != 31;
  bad += __float_as_uint(__uint_as_float(0x3F800000u)) != 0x3F800000u;
  if (bad) atomicMax(wrong, bad);
}

}  // namespace

// Called by the harness's Python module.
void run_sample(const std::string& kernel, int defect_index, int blocks, const void* in, int n, void* out,
                void* scratch) {
  const auto defect = Defect(defect_index);
  const auto* floats = static_cast<const float*>(in);
  if (kernel == "log_sum_exp") {
    cuda_on_cpu::launch([] { return "log_sum_exp"; }, blocks, kThreads,
                        [=] { log_sum_exp(floats, n, static_cast<float*>(out), defect); });
  } else if (kernel == "scan") {
    cuda_on_cpu::launch([] { return "scan"; }, 1, kThreads,
                        [=] { scan(static_cast<const int*>(in), static_cast<int*>(out), defect); });
  } else if (kernel == "grid_sum") {
    auto* parts = static_cast<float*>(scratch);
    auto* counter = reinterpret_cast<unsigned*>(parts + blocks);
    cudaMemsetAsync(counter, 0, sizeof *counter, nullptr);
    cuda_on_cpu::launch([] { return "grid_sum"; }, blocks, kThreads,
                        [=] { grid_sum(floats, n, parts, counter, static_cast<float*>(out), defect); });
  } else if (kernel == "cluster_sum") {
    run_cluster_sum({defect, blocks, in, n, out, scratch});
  } else if (kernel == "staged_sum") {
    run_staged_sum({defect, blocks, in, n, out, scratch});
  } else if (kernel == "two_launches") {
    run_two_launches({defect, blocks, in, n, out, scratch});
  } else if (kernel == "take_turns") {
    run_take_turns({defect, blocks, in, n, out, scratch});
  } else if (kernel == "count_threads") {
    run_count_threads({defect, blocks, in, n, out, scratch});
  } else if (kernel == "count_blocks") {
    run_count_blocks({defect, blocks, in, n, out, scratch});
  } else if (kernel == "turns") {
    auto* counter = static_cast<unsigned*>(scratch);
    cuda_on_cpu::launch([] { return "turns"; }, blocks, kThreads, [=] { turns(counter, static_cast<int*>(out)); });
  } else if (kernel == "intrinsics") {
    cuda_on_cpu::launch([] { return "intrinsics"; }, blocks, kThreads, [=] { intrinsics(static_cast<int*>(out)); });
  } else {
    throw std::runtime_error("no sample kernel " + kernel);
  }
}

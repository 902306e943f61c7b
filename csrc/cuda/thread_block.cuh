// SPDX-License-Identifier: Apache-2.0
// Collective steps of one block of kThreads threads. Except for take_ticket(), every thread calls them, and every
// thread gets the result.
#pragma once

#include "launch.h"
#include "warp_scan.cuh"

namespace specdec {

constexpr int kWarps = kThreads / kLanes;

// Storage for a T in shared memory, where CUDA allows no constructors
template <class T>
struct Uninitialised {
  alignas(T) char bytes[sizeof(T)];
  SPECDEC_DEVICE T& get() { return *reinterpret_cast<T*>(bytes); }
};

// The result of block_scan(), which adds up the threads' values in thread order. T is an integer type or double. Sums
// of doubles have one fixed order too.
template <class T>
struct Prefix {
  T before;  // the sum over the threads before this one
  T total;   // the sum over all threads
};

template <class T>
SPECDEC_DEVICE Prefix<T> block_scan(T x) {
  __shared__ T warp_totals[kWarps];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const T upto = warp_upto(x), before = warp_before(upto);
  if (lane == kLanes - 1) warp_totals[warp] = upto;
  __syncthreads();
  T total = 0, warps_before = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) warps_before = total;
    total += warp_totals[w];
  }
  __syncthreads();
  return {warps_before + before, total};
}

// Reduces one value per thread to one value. `join` must be associative and commutative.
template <class T, class Join>
SPECDEC_DEVICE T block_reduce(T x, const Join& join) {
  __shared__ T of_warp[kWarps];
  x = warp_reduce(x, join);
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = x;
  __syncthreads();
  x = of_warp[0];
  for (int w = 1; w < kWarps; ++w) x = join(x, of_warp[w]);
  __syncthreads();
  return x;
}

SPECDEC_DEVICE float block_max(float x) {
  return block_reduce(x, [](float a, float b) { return fmaxf(a, b); });
}
SPECDEC_DEVICE int block_max(int x) {
  return block_reduce(x, [](int a, int b) { return a < b ? b : a; });
}
SPECDEC_DEVICE int block_min(int x) {
  return block_reduce(x, [](int a, int b) { return a < b ? a : b; });
}

// The sum of f(i) over 0 <= i < n in a fixed order: each thread adds up a run of adjacent i.
template <class T, class F>
SPECDEC_DEVICE T block_sum(int n, const F& f) {
  const int run = (n + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
  T sum = 0;
  for (int i = begin; i < begin + run && i < n; ++i) sum += f(i);
  return block_scan(sum).total;
}

// Called by one thread of a block: counts the block in `arrived`, and returns how many were counted before. The count
// is acquire-release at GPU scope: after it, the thread sees all that the blocks counted before had written, and blocks
// that are counted later will see what is visible to this thread now.
SPECDEC_DEVICE int take_ticket(int* arrived) {
#if defined(__CUDA_ARCH__)
  int before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrived) : "memory");
  return before;
#else
  __threadfence();
  const int before = atomicAdd(arrived, 1);
  __threadfence();
  return before;
#endif
}

// Returns true in every thread of the last of `blocks` blocks that call this with the same counter. All that these
// blocks wrote before the call is then visible to it.
SPECDEC_DEVICE bool last_block(int* arrived, int blocks) {
  __shared__ bool last;
  __syncthreads();
  // After the barrier, one thread's ticket orders the writes of the whole block: one MEMBAR instead of one per warp.
  if (threadIdx.x == 0) last = blocks == 1 || take_ticket(arrived) == blocks - 1;
  __syncthreads();
  return last;
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Collective steps of one block of kThreads threads. Every thread calls them, and every thread gets the result.
#pragma once

#include "launch.h"
#include "warp.cuh"

namespace specdec {

constexpr int kWarps = kThreads / kLanes;

// Room for a T in shared memory, where nothing may be constructed.
template <class T>
struct Uninitialised {
  alignas(T) char bytes[sizeof(T)];
  SPECDEC_DEVICE T& get() { return *reinterpret_cast<T*>(bytes); }
};

// Scans in thread order: T is double (one fixed order) or an integer.
template <class T>
struct Prefix {
  T before;  // of the threads before this one
  T total;
};

// Sum over this lane and those before it
template <class T>
SPECDEC_DEVICE T warp_upto(T x) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const T other = __shfl_up_sync(kFullWarp, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

template <class T>
SPECDEC_DEVICE Prefix<T> block_scan(T x) {
  __shared__ T warp_totals[kWarps];
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const T upto = warp_upto(x);
  T before = __shfl_up_sync(kFullWarp, upto, 1);
  if (lane == 0) before = 0;
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

SPECDEC_DEVICE float block_max(float x) {
  __shared__ float warp_maxima[kWarps];
  x = warp_max(x);
  if (threadIdx.x % kLanes == 0) warp_maxima[threadIdx.x / kLanes] = x;
  __syncthreads();
  x = warp_maxima[0];
  for (int w = 1; w < kWarps; ++w) x = fmaxf(x, warp_maxima[w]);
  __syncthreads();
  return x;
}

SPECDEC_DEVICE int block_min(int x) {
  __shared__ int least;
  if (threadIdx.x == 0) least = INT32_MAX;
  __syncthreads();
  atomicMin(&least, x);
  __syncthreads();
  x = least;
  __syncthreads();
  return x;
}

SPECDEC_DEVICE int block_max(int x) { return -block_min(-x); }

// Sum over i < n in a fixed order; thread t takes a run of neighbours.
template <class T, class F>
SPECDEC_DEVICE T block_sum(int n, const F& f) {
  const int run = (n + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
  T sum = 0;
  for (int i = begin; i < begin + run && i < n; ++i) sum += f(i);
  return block_scan(sum).total;
}

struct Pick {
  int index;
  double before, inside, total;  // weight in front of it, its own, and that of all
};

// Inverse CDF: the first index with weight whose running sum exceeds fraction * total. The last one with weight stands
// in where rounding leaves that unreached.
template <class F>
SPECDEC_DEVICE Pick pick(int n, double fraction, const F& weight) {
  __shared__ double found[2];
  const int run = (n + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
  double own = 0;
  for (int i = begin; i < begin + run && i < n; ++i) {
    const double w = weight(i);
    if (w > 0) own += w;
  }
  const Prefix<double> prefix = block_scan(own);
  const double target = fraction * prefix.total;
  int first = INT32_MAX, last = -1;
  double running = prefix.before, before = 0, inside = 0;
  for (int i = begin; i < begin + run && i < n && first == INT32_MAX; ++i) {
    const double w = weight(i);
    if (!(w > 0)) continue;
    last = i, before = running, inside = w;
    running += w;
    if (running > target) first = i;
  }
  int index = block_min(first);
  if (index == INT32_MAX) index = block_max(last);
  if (index == last && last >= 0) found[0] = before, found[1] = inside;
  __syncthreads();
  if (index < 0) return {0, 0, 0, prefix.total};
  const Pick picked{index, found[0], found[1], prefix.total};
  __syncthreads();
  return picked;
}

// True in every thread of the last of `blocks` blocks to come here; what all of them wrote before is then visible.
SPECDEC_DEVICE bool last_block(int* arrived, int blocks) {
  __shared__ bool last;
  __syncthreads();
  if (blocks == 1) return true;
  if (threadIdx.x == 0) {  // a fence behind a barrier serves the whole block: one MEMBAR, and not one a warp
    __threadfence();
    last = atomicAdd(arrived, 1) == blocks - 1;
    if (last) __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace specdec

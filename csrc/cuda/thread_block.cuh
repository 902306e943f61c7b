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
  T own;
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
  return {warps_before + before, total, x};
}

// One value of all threads, by an operation that is the same in any order
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

// Sums over i < n in a fixed order, a run of neighbours to each thread: before its run, and of all
template <class T, class F>
SPECDEC_DEVICE Prefix<T> scan_runs(int n, const F& f) {
  const int run = (n + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
  T sum = 0;
  for (int i = begin; i < begin + run && i < n; ++i) sum += f(i);
  return block_scan(sum);
}

template <class T, class F>
SPECDEC_DEVICE T block_sum(int n, const F& f) {
  return scan_runs<T>(n, f).total;
}

struct Pick {
  int index;
  double before, inside;  // weight in front of it, and its own
};

// Inverse CDF over weights that scan_runs() has added up: the first index with weight whose running sum exceeds
// `target`. The last one with weight stands in where rounding leaves that unreached. kRun: the length of a thread's
// run, where it is known. Where a run is one weight, that is what the scan had as the thread's own.
template <int kRun = 0, class F>
SPECDEC_DEVICE Pick find(int n, double target, const Prefix<double>& prefix, const F& weight) {
  struct Found {
    Pick pick{-1, 0, 0};
    bool beyond = false;
  };
  __shared__ Uninitialised<Found> of_warp[kWarps];
  const int run = kRun > 0 ? kRun : (n + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
  Found own;
  double running = prefix.before;
#pragma unroll(kRun > 0 ? kRun : 1)
  for (int r = 0; r < run; ++r) {
    const double w = kRun == 0 && run == 1 ? prefix.own : begin + r < n && !own.beyond ? weight(begin + r) : 0;
    if (!(w > 0)) continue;
    own.pick = {begin + r, running, w};
    running += w;
    own.beyond = running > target;
  }
  const unsigned beyond = __ballot_sync(kFullWarp, own.beyond), any = __ballot_sync(kFullWarp, own.pick.index >= 0);
  const int lane = beyond ? __ffs(int(beyond)) - 1 : any ? kLanes - 1 - __clz(int(any)) : 0;
  if (int(threadIdx.x) % kLanes == lane) of_warp[threadIdx.x / kLanes].get() = own;
  __syncthreads();
  Pick found{0, 0, 0};
  for (int w = 0; w < kWarps; ++w) {
    const Found& other = of_warp[w].get();
    if (other.pick.index >= 0) found = other.pick;
    if (other.beyond) break;
  }
  __syncthreads();
  return found;
}

// True in every thread of the last of `blocks` blocks to come here; what all of them wrote before is then visible, and
// what one thread does meanwhile.
template <class F>
SPECDEC_DEVICE bool last_block(int* arrived, int blocks, const F& meanwhile) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == kLanes) meanwhile();  // in another warp than the one that waits for its ticket
  if (threadIdx.x == 0 && blocks == 1) last = true;
  if (threadIdx.x == 0 && blocks > 1) {  // a fence behind a barrier serves the whole block: one MEMBAR, not one a warp
    __threadfence();
    last = atomicAdd(arrived, 1) == blocks - 1;
    if (last) __threadfence();
  }
  __syncthreads();
  return last;
}
SPECDEC_DEVICE bool last_block(int* arrived, int blocks) {
  return last_block(arrived, blocks, [] {});
}

}  // namespace specdec

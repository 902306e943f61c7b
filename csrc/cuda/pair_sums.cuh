// SPDX-License-Identifier: Apache-2.0
// Terms of sums over a pair of rows. Eight neighbours are added up in float32, the rest in float64.
#pragma once

#include "thread_block.cuh"
#include "weights.cuh"
#include "../core/pair_sums.h"

namespace specdec {

// The weights of a law, group by group
struct DistWeights {
  using Entries = EarlyGroupsOf<kPairs>;  // at a time: as many as registers allow
  const Dist& p;

  SPECDEC_DEVICE bool valid() const { return p.valid(); }
  SPECDEC_DEVICE int64_t V() const { return p.row.V; }
  template <class At>
  SPECDEC_DEVICE void operator()(const At& at, float (&x)[At::kEntries]) const {
    constexpr int N = At::kEntries;
    if (has_row(p) && at.begin() < p.row.V) {
      at.load(p.row, pad_of(p), x);
      to_target_weights(p, x);
    } else {
#pragma unroll
      for (int r = 0; r < N; ++r) x[r] = p.kind == Kind::kOneHot && at.id(r) == p.hot;
    }
  }
};

// Entries of both rows: p's are a law's weights, and q's those that a residual sees; what is not finite is NaN.
template <class Weights, class At>
SPECDEC_DEVICE void pair_weights(const Weights& p, const Dist& q, const At& at, float (&x)[At::kEntries],
                                 float (&y)[At::kEntries]) {
  constexpr int N = At::kEntries;
  const bool row = has_row(q) && at.begin() < q.row.V;
  if (row) {
    at.raw(q.row, pad_of(q), y);  // on its way while p's weights are made
  } else {
#pragma unroll
    for (int r = 0; r < N; ++r) y[r] = q.kind == Kind::kOneHot && at.id(r) == q.hot;
  }
  p(at, x);
  if (!row) return;
  at.floats(q.row, pad_of(q), y);
  to_target_weights(q, y);
#pragma unroll
  for (int r = 0; r < N; ++r) y[r] = y[r] <= 1.0f + 1e-3f ? fminf(y[r], 1.0f) : y[r] - y[r];
}

// Of 8 neighbours: three roundings of a sum at most in float32 (core/pair_sums.h)
SPECDEC_DEVICE void add_clipped(const float* x, const float* y, const float (&t)[kCandidates],
                                double (&sums)[kCandidates]) {
#pragma unroll
  for (int m = 0; m < kCandidates; ++m) {
    float w[kGroup];
#pragma unroll
    for (int e = 0; e < kGroup; ++e) w[e] = fmaxf(fmaf(-t[m], y[e], x[e]), 0.0f);
    sums[m] += double(((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])));
  }
}

// What a search over sums of a pair asks of an executor: small work that is spread over lanes and warps.
struct BlockSearch {
  // f(false) and f(true), each by half of the warps. Passes over V lie between two calls.
  template <class F>
  SPECDEC_DEVICE void both(const F& f, double& of_false, double& of_true) const {
    __shared__ double found[2];
    const bool which = int(threadIdx.x) / kLanes % 2;
    const double own = f(which);
    if (threadIdx.x == (which ? kLanes : 0)) found[which] = own;
    __syncthreads();
    of_false = found[0], of_true = found[1];
  }

  // Of 0 .. n - 1 <= 31 the bits of those where a test holds
  template <class Test>
  SPECDEC_DEVICE uint32_t which_of(int n, const Test& test) const {
    const int lane = int(threadIdx.x) % kLanes;
    return __ballot_sync(kFullWarp, test(lane < n ? lane : 0) & (lane < n));
  }

  // The first i in 0..31 where a test holds; 32 if nowhere.
  template <class Test>
  SPECDEC_DEVICE int first_of_32(const Test& test) const {
    const uint32_t held = which_of(32, test);
    return held ? __ffs(int(held)) - 1 : 32;
  }
};

}  // namespace specdec

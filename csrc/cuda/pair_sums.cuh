// SPDX-License-Identifier: Apache-2.0
// The terms of sums over a pair of rows, p and q. Of the clipped terms (p - t q)+, those of eight adjacent entries are
// added in float32. All other additions are in float64.
#pragma once

#include "thread_block.cuh"
#include "weights.cuh"
#include "../core/pair_sums.h"

namespace specdec {

// Computes the weights (probabilities) of a distribution's entries.
struct DistWeights {
  using Entries = EarlyGroupsOf<kPairs>;  // those loaded at a time: as many as registers allow
  const Dist& p;

  SPECDEC_DEVICE bool valid() const { return p.valid(); }
  SPECDEC_DEVICE int64_t V() const { return p.row.V; }
  template <class At>
  SPECDEC_DEVICE void operator()(const At& at, float (&x)[At::kEntries]) const {
    constexpr int N = At::kEntries;
    if (has_row(p) && at.begin() < p.row.V) {
      load(p, at, pad_of(p), x);
      to_target_weights(p, x);
    } else {
#pragma unroll
      for (int r = 0; r < N; ++r) x[r] = p.kind == Kind::kOneHot && at.id(r) == p.hot;
    }
  }
};

// Computes the weights x of p and y of q. `p` computes x, like a DistWeights. y is what a residual subtracts: q, at
// most 1, or 0 if q is larger than a probability can be. A weight that is not finite becomes NaN.
template <class Weights, class At>
SPECDEC_DEVICE void pair_weights(const Weights& p, const Dist& q, const At& at, float (&x)[At::kEntries],
                                 float (&y)[At::kEntries]) {
  constexpr int N = At::kEntries;
  const bool row = has_row(q) && at.begin() < q.row.V;
  if (row) {
    if (!q.row.is_listed()) at.raw(q.row, pad_of(q), y);  // these loads overlap with the work on p
  } else {
    const int64_t hot = q.kind == Kind::kOneHot ? number_in(q.row, q.hot) : -1;
#pragma unroll
    for (int r = 0; r < N; ++r) y[r] = at.id(r) == hot;
  }
  p(at, x);
  if (!row) return;
  if (q.row.is_listed())
    load_listed(q.row.listed(), q.stats, at, y);
  else
    at.floats(q.row, pad_of(q), y);
  to_target_weights(q, y);
#pragma unroll
  for (int r = 0; r < N; ++r) y[r] = y[r] <= 1.0f + 1e-3f ? fminf(y[r], 1.0f) : y[r] - y[r];
}

// Adds (x - t y)+ of eight adjacent entries to `sums`, for each t. The float32 additions round a term at most three
// times (core/pair_sums.h).
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

// The base of executors that search a root over sums of a pair (kseq_rho.h). It spreads small computations over lanes
// and warps.
struct BlockSearch {
  // Computes f(false) and f(true), each in half of the warps. `found` is safe to reuse, since a pass over V, with its
  // barriers, lies between two calls.
  template <class F>
  SPECDEC_DEVICE void both(const F& f, double& of_false, double& of_true) const {
    __shared__ double found[2];
    const bool which = int(threadIdx.x) / kLanes % 2;
    const double own = f(which);
    if (threadIdx.x == (which ? kLanes : 0)) found[which] = own;
    __syncthreads();
    of_false = found[0], of_true = found[1];
  }

  // Bit i of the result: whether test(i) holds, for i < n <= 32
  template <class Test>
  SPECDEC_DEVICE uint32_t which_of(int n, const Test& test) const {
    const int lane = int(threadIdx.x) % kLanes;
    return __ballot_sync(kFullWarp, test(lane < n ? lane : 0) & (lane < n));
  }

  // The first i in 0..31 for which the test holds, else 32
  template <class Test>
  SPECDEC_DEVICE int first_of_32(const Test& test) const {
    const uint32_t held = which_of(32, test);
    return held ? __ffs(int(held)) - 1 : 32;
  }
};

}  // namespace specdec

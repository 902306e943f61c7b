// SPDX-License-Identifier: Apache-2.0
// Sums over a pair of rows by one block. Eight neighbours are added up in float32, the rest in float64.
#pragma once

#include "block.cuh"
#include "pair_sums.h"

namespace specdec {

// q(v) as a residual sees it; what is not finite becomes NaN.
SPECDEC_DEVICE float pair_draft_weight(const Dist& q, float z) {
  const float w = target_weight(q, z);
  return w <= 1.0f + 1e-3f ? fminf(w, 1.0f) : w - w;
}

// add(x, y) of every 8 neighbours of p and of q
template <class Add>
SPECDEC_DEVICE void for_pair(const Dist& p, const Dist& q, const Add& add) {
  constexpr int N = kPairs * kGroup;
  const int64_t V = p.row.V > q.row.V ? p.row.V : q.row.V, chunks = (V + kChunk - 1) / kChunk;
#pragma unroll 1
  for (int64_t c = threadIdx.x / kLanes; c < chunks; c += kWarps) {
#pragma unroll 1
    for (int first = 0; first < kChunk / kLanes / kGroup; first += kPairs) {
      float x[N] = {}, y[N] = {};
      if (has_row(p) && c * kChunk < p.row.V) {
        load_groups<kPairs>(p.row, c, first, pad_of(p), x);
#pragma unroll
        for (int r = 0; r < N; ++r) x[r] = target_weight(p, x[r]);
      }
      if (has_row(q) && c * kChunk < q.row.V) {
        load_groups<kPairs>(q.row, c, first, pad_of(q), y);
#pragma unroll
        for (int r = 0; r < N; ++r) y[r] = pair_draft_weight(q, y[r]);
      }
      if (p.kind == Kind::kOneHot || q.kind == Kind::kOneHot) {
#pragma unroll
        for (int r = 0; r < N; ++r) {
          const int64_t id = c * kChunk + group_begin(first + r / kGroup) + r % kGroup;
          if (p.kind == Kind::kOneHot) x[r] = id == p.hot;
          if (q.kind == Kind::kOneHot) y[r] = id == q.hot;
        }
      }
#pragma unroll
      for (int g = 0; g < N; g += kGroup) add(x + g, y + g);
    }
  }
}

template <int M>
SPECDEC_DEVICE void block_totals(double (&sums)[M]) {
  __shared__ double parts[kWarps][M];
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sums[m] += __shfl_xor_sync(kFullWarp, sums[m], step);
    if (threadIdx.x % kLanes == 0) parts[threadIdx.x / kLanes][m] = sums[m];
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < M; ++m) {
    sums[m] = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sums[m] += parts[w][m];
  }
  __syncthreads();
}

SPECDEC_DEVICE PairMass block_masses(const Dist& p, const Dist& q) {
  if (!p.valid() || !q.valid()) return {NAN, NAN};
  double sums[2] = {};
  for_pair(p, q, [&](const float* x, const float* y) {
#pragma unroll
    for (int e = 0; e < kGroup; ++e) sums[0] += x[e], sums[1] += y[e];
  });
  block_totals(sums);
  return {sums[0], sums[1]};
}

SPECDEC_DEVICE void block_unders(const Dist& p, const Dist& q, const float (&t)[kCandidates], double (&out)[kCandidates]) {
#pragma unroll
  for (int m = 0; m < kCandidates; ++m) out[m] = 0;
  for_pair(p, q, [&](const float* x, const float* y) {
#pragma unroll
    for (int m = 0; m < kCandidates; ++m) {
      float w[kGroup];
#pragma unroll
      for (int e = 0; e < kGroup; ++e) w[e] = fmaxf(fmaf(-t[m], y[e], x[e]), 0.0f);
      out[m] += double(((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7])));
    }
  });
  block_totals(out);
}

// The first i in 0..31 where a test holds; 32 if nowhere.
template <class Test>
SPECDEC_DEVICE int warp_first_of_32(const Test& test) {
  const unsigned held = __ballot_sync(kFullWarp, test(int(threadIdx.x) % kLanes));
  return held ? __ffs(int(held)) - 1 : 32;
}

// The Team of a search that is all a kernel does.
struct PairTeam {
  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) const { return block_masses(p, q); }
  SPECDEC_DEVICE void unders(const Dist& p, const Dist& q, const float (&t)[kCandidates], double (&out)[kCandidates]) const {
    block_unders(p, q, t, out);
  }
  template <class Test>
  SPECDEC_DEVICE int first_of_32(const Test& test) const { return warp_first_of_32(test); }
};

}  // namespace specdec

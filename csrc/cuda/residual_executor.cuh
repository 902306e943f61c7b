// SPDX-License-Identifier: Apache-2.0
// The CUDA Team of walks that meet many rows: one block does every step over V itself, over chunks of one fixed shape.
#pragma once

#include "block_executor.cuh"
#include "../core/residual.h"
#include "pair_sums.cuh"

namespace specdec {

// Groups of a chunk of q as a residual sees them, without ids that were taken out; 0 beyond the row.
template <int N>
SPECDEC_DEVICE void draft_groups(const Dist& q, const Taken& taken, int64_t chunk, int first, float (&y)[N]) {
  load_groups<N / kGroup>(q.row, chunk, first, pad_of(q), y);
#pragma unroll
  for (int r = 0; r < N; ++r) y[r] = draft_weight(q, y[r]);
#pragma unroll 1
  for (int64_t i = 0; i < taken.n; ++i) {
    const int64_t id = taken[i];
    if (id < chunk * kChunk || id >= (chunk + 1) * kChunk) continue;
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (id_of(chunk, first, r) == id) y[r] = 0;
    }
  }
}

// x less what a link takes away; NaN stays.
SPECDEC_DEVICE float taken_away(float x, float q, float s, float cap) {
  const float left = x - s * fminf(q, cap * x);
  return left > 0 || x != x ? left : 0.0f;
}

// What its links leave of two groups of a chunk
SPECDEC_DEVICE void link_groups(const Chain& chain, int64_t chunk, int first, float (&w)[kPairs * kGroup]) {
  constexpr int N = kPairs * kGroup;
#pragma unroll 1
  for (int64_t j = 0; j < chain.n; ++j) {
    const Link& link = chain.links[j];
    const float m = link.m;
#pragma unroll
    for (int r = 0; r < N; ++r) w[r] *= m;
    if (link.q.kind == Kind::kOneHot) {
      const int64_t hot = link.q.hot;
#pragma unroll
      for (int r = 0; r < N; ++r) {
        if (id_of(chunk, first, r) == hot) w[r] *= 0;
      }
    } else if (link.q.kind != Kind::kNothing && chunk * kChunk < link.q.row.V) {
      const float s = link.s, cap = link.cap;
      float y[N];
      draft_groups(link.q, gone(chain.links, j), chunk, first, y);
#pragma unroll
      for (int r = 0; r < N; ++r) w[r] = taken_away(w[r], y[r], s, cap);
    }
  }
}

// The weights of two groups of a chunk; 0 beyond the row of p, which has one.
SPECDEC_DEVICE void chain_groups(const Chain& chain, int64_t chunk, int first, float (&w)[kPairs * kGroup]) {
  load_groups<kPairs>(chain.p.row, chunk, first, pad_of(chain.p), w);
#pragma unroll
  for (int r = 0; r < kPairs * kGroup; ++r) w[r] = target_weight(chain.p, w[r]);
  link_groups(chain, chunk, first, w);
}

// What its links leave of w
SPECDEC_DEVICE float link_weight_at(const Chain& chain, int64_t v, float w) {
#pragma unroll 1
  for (int64_t j = 0; j < chain.n; ++j) {
    const Link& link = chain.links[j];
    w *= link.m;
    if (link.q.kind == Kind::kOneHot) {
      if (link.q.hot == v) w *= 0;
    } else if (link.q.kind != Kind::kNothing && v < link.q.row.V && !chain.is_gone(v, j)) {
      w = taken_away(w, draft_weight(link.q, load_scalar(link.q.row, v)), link.s, link.cap);
    }
  }
  return w;
}

SPECDEC_DEVICE float chain_weight_at(const Chain& chain, int64_t v) {
  return link_weight_at(chain, v, target_weight(chain.p, load_scalar(chain.p.row, v)));
}

// How many chunks each warp takes where one block does all of a row.
SPECDEC_DEVICE int all_turns(int64_t V) { return int((chunk_count(V) + kWarps - 1) / kWarps); }

SPECDEC_DEVICE double block_sum_of(int64_t V, const float* sums) {
  return block_sum<double>(int(chunk_count(V)), [&](int c) { return double(__ldcg(sums + c)); });
}

// Leaves what groups(chunk, first, w) makes of a row, added up chunk by chunk; returns the total.
template <class Groups>
SPECDEC_DEVICE double block_sum_over(int64_t V, float* sums, const Groups& groups) {
  for_chunks(chunk_count(V), 0, all_turns(V), [&](int64_t c) {
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int first = 0; first < kChunk / kLanes / kGroup; first += kPairs) {
      float w[kPairs * kGroup];
      groups(c, first, w);
#pragma unroll
      for (int r = 0; r < kPairs * kGroup; ++r) sum[r % 2] += w[r];
    }
    const float all = warp_sum(sum[0] + sum[1]);
    if (threadIdx.x % kLanes == 0) __stcg(sums + c, all);
  });
  __syncthreads();
  return block_sum_of(V, sums);
}

// The steps over V: a walk takes each in several places, and a kernel has one copy of it.
#define SPECDEC_STEP static __device__ __attribute__((noinline))

template <bool kFiltered>
SPECDEC_STEP Law step_law(Row row, Filters filters, ChunkTable table) {
  __syncthreads();
  scan_chunks(row, filters, 0, all_turns(row.V), table);
  __syncthreads();
  return block_law<kFiltered>(row, filters, table);
}

SPECDEC_STEP double step_sum(Chain chain, float* sums) {
  return block_sum_over(chain.p.row.V, sums, [&](int64_t chunk, int first, float (&w)[kPairs * kGroup]) { chain_groups(chain, chunk, first, w); });
}

SPECDEC_STEP Law step_law_without(Dist q, Taken taken, ChunkTable table) { return block_law_without(q, taken, table); }

SPECDEC_STEP double step_mass_without(Dist q, Taken taken, float* sums) {
  return block_sum_over(q.row.V, sums, [&](int64_t chunk, int first, float (&w)[kPairs * kGroup]) { draft_groups(q, taken, chunk, first, w); });
}

SPECDEC_STEP int64_t step_draw(Chain chain, double v, const float* sums) {
  const Pick chunk = pick(int(chunk_count(chain.p.row.V)), v, [&](int c) { return double(__ldcg(sums + c)); });
  const int64_t first = int64_t(chunk.index) * kChunk;
  const int n = int(chain.p.row.V - first < kChunk ? chain.p.row.V - first : kChunk);
  // The fraction of the chunk's own weight, since the rescan adds it up in another order.
  const double fraction = (v * chunk.total - chunk.before) / chunk.inside;
  return first + pick(n, fraction, [&](int i) { return double(chain_weight_at(chain, first + i)); }).index;
}

SPECDEC_STEP PairMass step_masses(Dist p, Dist q) { return block_masses(DistWeights{p}, q); }

// `out` [kCandidates] is shared memory.
SPECDEC_STEP void step_unders(Dist p, Dist q, float4 t, double* out) {
  const float candidates[kCandidates] = {t.x, t.y, t.z, t.w};
  double sums[kCandidates];
  block_unders(DistWeights{p}, q, candidates, sums);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int m = 0; m < kCandidates; ++m) out[m] = sums[m];
  }
  __syncthreads();
}

#undef SPECDEC_STEP

class ChainTeam {
 public:
  static constexpr bool kBlends = false, kMakesLaws = true;

  // Room for the chunks of the widest row.
  SPECDEC_DEVICE explicit ChainTeam(const ChunkTable& table) : table_(table) {}

  SPECDEC_DEVICE bool leads() const { return threadIdx.x == 0; }
  SPECDEC_DEVICE void sync() const { __syncthreads(); }

  // Without filters it leaves the chunk sums of the row's law.
  template <bool kFiltered = true>
  SPECDEC_DEVICE Law law(const Row& row, const Filters& filters) {
    const Law law = step_law<kFiltered>(row, filters, table_);
    held_ = filters.any(row.V) || filters.greedy() ? nullptr : row.data, held_norm_ = law.log_norm;
    return law;
  }

  // Leaves its chunk sums for draw().
  SPECDEC_DEVICE double sum(const Chain& chain) {
    if (holds(chain)) return block_sum_of(chain.p.row.V, table_.sum);
    held_ = nullptr;
    return step_sum(chain, table_.sum);
  }

  // What is left of a row where ids were taken out: of logits a law of its own (see block_law_without), of any row the total.
  SPECDEC_DEVICE Law law_without(const Dist& q, const Taken& taken) {
    held_ = nullptr;
    return step_law_without(q, taken, table_);
  }
  SPECDEC_DEVICE double mass_without(const Dist& q, const Taken& taken) {
    held_ = nullptr;
    return step_mass_without(q, taken, table_.sum);
  }

  SPECDEC_DEVICE int64_t draw(const Chain& chain, double v) const { return step_draw(chain, v, table_.sum); }

  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const { return block_argmax_finite(row); }

  // Of a law without links; a Dist is one.
  SPECDEC_DEVICE PairMass masses(const Chain& p, const Dist& q) const { return step_masses(p.p, q); }
  SPECDEC_DEVICE void unders(const Chain& p, const Dist& q, const float (&t)[kCandidates], double (&out)[kCandidates]) const {
    unders(p.p, q, t, out);
  }
  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) const { return step_masses(p, q); }
  SPECDEC_DEVICE void unders(const Dist& p, const Dist& q, const float (&t)[kCandidates], double (&out)[kCandidates]) const {
    __shared__ double sums[kCandidates];
    step_unders(p, q, make_float4(t[0], t[1], t[2], t[3]), sums);
#pragma unroll
    for (int m = 0; m < kCandidates; ++m) out[m] = sums[m];
  }

  template <class Test>
  SPECDEC_DEVICE int first_of_32(const Test& test) const { return warp_first_of_32(test); }

 protected:
  // Two laws of one row, neither with a cutoff, are the same if their norms are.
  SPECDEC_DEVICE bool holds(const Chain& chain) const {
    const Dist& p = chain.p;
    const bool same = held_ == p.row.data && held_norm_ == p.law.log_norm && p.law.cutoff == -FLT_MAX;
    return same && chain.n == 0 && p.kind == Kind::kLogits && !chain.blend;
  }

  const ChunkTable table_;
  const void* held_ = nullptr;  // the row of logits whose law's own sums the table holds: of the law without a cutoff
  float held_norm_ = 0;         // and with this norm
};

}  // namespace specdec

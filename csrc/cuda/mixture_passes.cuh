// SPDX-License-Identifier: Apache-2.0
// The passes over V of walks by a rule
#pragma once

#include "residual_executor.cuh"

namespace specdec {

// The weights that a residual subtracts for q, which may be one-hot; 0 beyond the row
template <class At>
SPECDEC_DEVICE void mixture_draft_weights(const Dist& q, const At& at, float (&y)[At::kEntries]) {
  if (has_row(q) && at.begin() < q.row.V) return draft_weights(q, Few{}, at, y);
  const int64_t hot = hot_id(q);
#pragma unroll
  for (int r = 0; r < At::kEntries; ++r) y[r] = at.id(r) == hot;
}

// Bit r: whether the mixture keeps q at entry r. A one-hot score row is q itself, so q's weights `y` stand in for its
// entries. Without a score row the threshold is -inf.
template <class At>
SPECDEC_DEVICE uint32_t kept_of(const Mixture& mixture, int64_t V, const At& at, const float (&y)[At::kEntries]) {
  constexpr int N = At::kEntries;
  float z[N];
  const bool row = has_row(mixture.score_row) && at.begin() < mixture.score_row.row.V;
  if (row) load(mixture.score_row, at, -HUGE_VALF, z);
  const float threshold = mixture.threshold;
  uint32_t kept = 0;
#pragma unroll
  for (int r = 0; r < N; ++r) kept |= uint32_t((row ? z[r] : y[r]) >= threshold && at.id(r) < V) << r;
  return kept;
}

// Turns the weights of p into those of the mixture.
template <class At>
SPECDEC_DEVICE void mix(int64_t V, const Mixture& mixture, const At& at, float (&w)[At::kEntries]) {
  constexpr int N = At::kEntries;
  float y[N];
  mixture_draft_weights(mixture.q, at, y);
  if (mixture.capped) {
    const float of_q = mixture.of_q, of_p = mixture.of_p, m = mixture.m, minus = mixture.minus;
#pragma unroll
    for (int r = 0; r < N; ++r) {
      const float left = capped_weight(w[r], y[r], of_q, of_p, m, minus);
      w[r] = at.id(r) < V ? left : 0.0f;
    }
    return;
  }
  const uint32_t keeps = kept_of(mixture, V, at, y);
  const float of_p = mixture.m * mixture.of_p, kept = mixture.kept(), minus = -mixture.minus;
#pragma unroll
  for (int r = 0; r < N; ++r) {
    const float left = mixed_weight(w[r], y[r], of_p, keeps >> r & 1 ? kept : minus);
    w[r] = at.id(r) < V ? left : 0.0f;
  }
}

// The weights of a residual before any subtraction; 0 beyond p's row
template <class At>
SPECDEC_DEVICE void weigh_mixed(const Residual& residual, const At& at, float (&w)[At::kEntries]) {
  DistWeights{residual.p}(at, w);
  if (residual.mixture && at.begin() < residual.p.row.V) mix(residual.p.row.V, *residual.mixture, at, w);
}

// -x exp(x) with x = (z - max) * scale, 0 below the cutoff
SPECDEC_DEVICE float surprise(const RowStats& stats, float z) {
  const float x = fmaxf(scaled(z, stats.max, stats.scale), -100.0f);
  return z >= stats.cutoff ? -x * fast_exp2(x * kLog2E) : 0.0f;
}

SPECDEC_DEVICE double entropy_of(const RowStats& stats, double surprises) {
  return stats.log_norm + surprises * exp(-double(stats.log_norm));
}

// The passes over V. Each is compiled once for all the places in a walk that need it. They take values, or pointers to
// what is in memory anyway: a pointer to a variable of a thread would put that variable on the stack.
namespace apart {

template <class At>
SPECDEC_DEVICE double residual_sum_by(const Residual* residual, float* sums) {
  return cluster_sum_by<At>(residual->p.row.V, sums, [&](const auto& at, auto& w) {
    weigh_mixed(*residual, at, w);
    subtract(*residual, at, w);
  });
}
SPECDEC_APART double residual_sum_by_id(const Residual* residual, float* sums) {
  return residual_sum_by<ByIdGroup>(residual, sums);
}
SPECDEC_APART double residual_sum(const Residual* residual, float* sums) {
  if (is_by_id(*residual)) return residual_sum_by_id(residual, sums);
  return residual_sum_by<GroupsOf<kPairs>>(residual, sums);
}

SPECDEC_APART int64_t residual_draw(const Residual* residual, double v, const float* sums) {
  return block_draw(block_choose(residual->p.row.V, v, sums), [&](const ThreadRun& at, auto& w, const auto& meanwhile) {
    meanwhile();
    weigh_mixed(*residual, at, w);
    subtract(*residual, at, w);
  });
}

// The weights of a residual without subtractions
struct ResidualWeights {
  using Entries = GroupsOf<1>;
  const Residual& residual;

  SPECDEC_DEVICE bool valid() const { return residual.p.valid(); }
  SPECDEC_DEVICE int64_t V() const { return residual.p.row.V; }
  template <class At>
  SPECDEC_DEVICE void operator()(const At& at, float (&x)[At::kEntries]) const {
    weigh_mixed(residual, at, x);
  }
};

// p must have no subtractions.
struct Pair {
  Residual p;
  Dist q;
};

SPECDEC_DEVICE bool is_by_id(const Pair& pair) { return pair.q.row.is_listed() || specdec::is_by_id(pair.p); }

SPECDEC_APART PairMass masses_by_id(const Pair* pair, PairPass pass) {
  return pair_masses<ByIdGroup>(ResidualWeights{pair->p}, pair->q, pass);
}
SPECDEC_APART PairMass masses(const Pair* pair, PairPass pass) {
  if (is_by_id(*pair)) return masses_by_id(pair, pass);
  return pair_masses(ResidualWeights{pair->p}, pair->q, pass);
}

SPECDEC_APART void clipped_sums_by_id(const Pair* pair, float4 t, PairPass pass) {
  leave_clipped_sums<ByIdGroup>(ResidualWeights{pair->p}, pair->q, {t.x, t.y, t.z, t.w}, pass);
}
SPECDEC_APART void clipped_sums(const Pair* pair, float4 t, PairPass pass) {
  if (!pass.kept && is_by_id(*pair)) return clipped_sums_by_id(pair, t, pass);
  leave_clipped_sums(ResidualWeights{pair->p}, pair->q, {t.x, t.y, t.z, t.w}, pass);
}

SPECDEC_APART double pair_sum_by_id(const Dist* p, const Dist* q, float* sums) {
  return cluster_sum_by<ByIdGroup>(p->row.V, sums, [&](const auto& at, auto& w) { weigh(*p, *q, at, w); });
}
SPECDEC_APART double pair_sum(const Dist* p, const Dist* q, float* sums) {
  if (q->row.is_listed()) return pair_sum_by_id(p, q, sums);
  return cluster_sum_over(p->row.V, sums, [&](const auto& at, auto& w) { weigh(*p, *q, at, w); });
}

template <class At>
SPECDEC_DEVICE double entropy_sum_by(const Row& row, const RowStats& stats, bool logits, float* sums) {
  Dist d;
  d.row = row, d.stats = stats;
  if (logits) {  // tested once, not for each entry
    return cluster_sum_by<At>(row.V, sums, [&](const auto& at, auto& w) {
      load(d, at, -HUGE_VALF, w);
#pragma unroll
      for (int r = 0; r < at.kEntries; ++r) w[r] = surprise(stats, w[r]);
    });
  }
  return cluster_sum_by<At>(row.V, sums, [&](const auto& at, auto& w) {
    load(d, at, 0, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = w[r] > 0 ? -w[r] * logf(w[r]) : 0.0f;
  });
}
SPECDEC_APART double entropy_sum_by_id(Row row, RowStats stats, bool logits, float* sums) {
  return entropy_sum_by<ByIdGroup>(row, stats, logits, sums);
}
SPECDEC_APART double entropy_sum(Row row, RowStats stats, bool logits, float* sums) {
  if (row.is_listed()) return entropy_sum_by_id(row, stats, logits, sums);
  return entropy_sum_by<GroupsOf<kPairs>>(row, stats, logits, sums);
}

SPECDEC_APART double count_above(Row row, float least, float* sums) {
  return cluster_sum_over(row.V, sums, [&](const auto& at, auto& w) {
    at.load(row, -HUGE_VALF, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = w[r] > least;
  });
}

template <class At>
SPECDEC_DEVICE double deferred_sum_by(const Mixture* mixture, int64_t V, float* sums) {
  return cluster_sum_by<At>(mixture->q.row.V, sums, [&](const auto& at, auto& w) {
    draft_weights(mixture->q, Few{}, at, w);
    const uint32_t kept = kept_of(*mixture, V, at, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = kept >> r & 1 ? 0.0f : w[r];
  });
}
SPECDEC_APART double deferred_sum_by_id(const Mixture* mixture, int64_t V, float* sums) {
  return deferred_sum_by<ByIdGroup>(mixture, V, sums);
}
SPECDEC_APART double deferred_sum(const Mixture* mixture, int64_t V, float* sums) {
  if (mixture->q.row.is_listed()) return deferred_sum_by_id(mixture, V, sums);
  return deferred_sum_by<GroupsOf<kPairs>>(mixture, V, sums);
}

// load(at, z) returns probabilities.
template <class At, class Load>
SPECDEC_DEVICE double largest_of(const Row& row, float* most, const Load& load) {
  const int chunks = int(chunk_count(row.V));
  for_chunks(chunks, cluster_rank(), turns(chunks, cluster_size()), [&](int64_t c) {
    float max = 0;
    bool bad = false;
#pragma unroll 1
    for (int first = 0; first < kGroups; first += At::kEntries / kGroup) {
      float z[At::kEntries];
      load(At{c, first}, z);
#pragma unroll
      for (int r = 0; r < At::kEntries; ++r) max = fmaxf(max, z[r]), bad |= !(z[r] < HUGE_VALF);
    }
    max = __any_sync(kFullWarp, bad) ? HUGE_VALF : warp_max(max);
    if (threadIdx.x % kLanes == 0) __stcg(most + c, max);
  });
  cluster_sync();
  float max = 0;
  for (int c = threadIdx.x; c < chunks; c += kThreads) max = fmaxf(max, __ldcg(most + c));
  max = block_max(max);
  return max > 0 && max < HUGE_VALF ? double(max) : NAN;
}
SPECDEC_APART double largest_prob(Row row, float* most) {
  return largest_of<GroupsOf<kPairs>>(row, most, [&](const auto& at, auto& z) { at.load(row, 0, z); });
}
SPECDEC_APART double largest_prob_by_id(Row row, RowStats stats, float* most) {
  const LogitWeights of(stats);
  return largest_of<ByIdGroup>(row, most, [&](const auto& at, auto& z) {
    load_listed(row.listed(), stats, at, z);
    if (row.listed()->adds) return;
#pragma unroll
    for (float& x : z) x = of.of_target(x);
  });
}

}  // namespace apart

}  // namespace specdec

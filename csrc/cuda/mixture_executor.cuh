// SPDX-License-Identifier: Apache-2.0
// The CUDA Executor for walks by a rule. There a residual may begin with a mixture (core/mixture.h), and rules need the
// entropy and the largest probability of rows.
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
  if (!residual.mixture || at.begin() >= residual.p.row.V) return;
  for_parts(at, w, [&](const auto& part, auto& x) { mix(residual.p.row.V, *residual.mixture, part, x); });
}

// -x exp(x) with x = (z - max) * scale, 0 below the cutoff
SPECDEC_DEVICE float surprise(const RowStats& stats, float z) {
  const float x = fmaxf(scaled(z, stats.max, stats.scale), -100.0f);
  return z >= stats.cutoff ? -x * fast_exp2(x * kLog2E) : 0.0f;
}

// The entropy of a row of logits, from the sum of surprise() over its entries
SPECDEC_DEVICE double entropy_of(const RowStats& stats, double surprises) {
  return stats.log_norm + surprises * exp(-double(stats.log_norm));
}

// The passes over V. Each is compiled once for all the places in a walk that need it. Their arguments are values, or
// pointers to what is in memory anyway: a pointer to a variable of a thread would put that variable on the stack.
namespace apart {

SPECDEC_APART double residual_sum(const Residual* residual, float* sums) {
  return cluster_sum_over(residual->p.row.V, sums, [&](const auto& at, auto& w) {
    weigh_mixed(*residual, at, w);
    subtract(*residual, at, w);
  });
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

SPECDEC_APART PairMass masses(const Pair* pair, PairPass pass) {
  return pair_masses(ResidualWeights{pair->p}, pair->q, pass);
}

SPECDEC_APART void clipped_sums(const Pair* pair, float4 t, PairPass pass) {
  leave_clipped_sums(ResidualWeights{pair->p}, pair->q, {t.x, t.y, t.z, t.w}, pass);
}

SPECDEC_APART double pair_sum(const Dist* p, const Dist* q, float* sums) {
  return cluster_sum_over(p->row.V, sums, [&](const auto& at, auto& w) { weigh(*p, *q, at, w); });
}

SPECDEC_APART double entropy_sum(Row row, RowStats stats, bool logits, float* sums) {
  const auto load_row = [&](const auto& at, float pad, auto& w) {
    row.is_listed() ? load_listed(row.listed(), stats, at, w) : at.load(row, pad, w);
  };
  if (logits) {  // tested once, not for each entry
    return cluster_sum_over(row.V, sums, [&](const auto& at, auto& w) {
      load_row(at, -HUGE_VALF, w);
#pragma unroll
      for (int r = 0; r < at.kEntries; ++r) w[r] = surprise(stats, w[r]);
    });
  }
  return cluster_sum_over(row.V, sums, [&](const auto& at, auto& w) {
    load_row(at, 0, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = w[r] > 0 ? -w[r] * logf(w[r]) : 0.0f;
  });
}

SPECDEC_APART double count_above(Row row, float least, float* sums) {
  return cluster_sum_over(row.V, sums, [&](const auto& at, auto& w) {
    at.load(row, -HUGE_VALF, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = w[r] > least;
  });
}

SPECDEC_APART double deferred_sum(const Mixture* mixture, int64_t V, float* sums) {
  return cluster_sum_over(mixture->q.row.V, sums, [&](const auto& at, auto& w) {
    draft_weights(mixture->q, Few{}, at, w);
    const uint32_t kept = kept_of(*mixture, V, at, w);
#pragma unroll
    for (int r = 0; r < at.kEntries; ++r) w[r] = kept >> r & 1 ? 0.0f : w[r];
  });
}

// The largest of the probabilities z that load(at, z) computes; NaN if one is NaN or infinite, or if none is positive.
// `most` [chunks] is memory for the maxima of the chunks.
template <class Load>
SPECDEC_DEVICE double largest_of(const Row& row, float* most, const Load& load) {
  const int chunks = int(chunk_count(row.V));
  for_chunks(chunks, cluster_rank(), turns(chunks, cluster_size()), [&](int64_t c) {
    float max = 0;
    bool bad = false;
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kPairs) {
      float z[kPairs * kGroup];
      load(GroupsOf<kPairs>{c, first}, z);
#pragma unroll
      for (int r = 0; r < kPairs * kGroup; ++r) max = fmaxf(max, z[r]), bad |= !(z[r] < HUGE_VALF);
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
  return largest_of(row, most, [&](const auto& at, auto& z) { at.load(row, 0, z); });
}
SPECDEC_APART double largest_sum(Row row, RowStats stats, float* most) {
  const LogitWeights of(stats);
  return largest_of(row, most, [&](const auto& at, auto& z) {
    load_listed(row.listed(), stats, at, z);
    if (row.listed()->adds) return;
#pragma unroll
    for (float& x : z) x = of.of_target(x);
  });
}

}  // namespace apart

// A ResidualExecutor that also handles mixtures, and computes the numbers that rules need. Kernels of walks without a
// rule do not contain this code.
class MixtureExecutor : public ResidualExecutor {
 public:
  static constexpr bool kMixes = true, kMakesRuleDists = true;

  using ResidualExecutor::ResidualExecutor;

  // The residual is copied to shared memory; its subtractions and its mixture must be in memory already.
  SPECDEC_DEVICE double sum(const Residual& residual) {
    if (holds(residual)) return block_sum_of(residual.p.row.V, sums_);
    return apart::residual_sum(&shared(residual).p, next_sums());
  }
  SPECDEC_DEVICE int64_t draw(const Residual& residual, double v) const {
    return apart::residual_draw(&shared(residual).p, v, sums_);
  }

  // Leaves the pair in shared memory for clipped_sums(); any other sum or draw may overwrite it.
  SPECDEC_DEVICE PairMass masses(const Residual& p, const Dist& q) {
    return apart::masses(&shared(p, &q), pair_tables_.next());
  }
  SPECDEC_DEVICE void clipped_sums(const Residual&, const Dist&, const float (&t)[kCandidates],
                                   double (&out)[kCandidates]) {
    const PairPass pass = pair_tables_.next();
    apart::clipped_sums(&shared(), make_float4(t[0], t[1], t[2], t[3]), pass);
    totals_of(*pass.table, out);
  }
  SPECDEC_DEVICE PairMass masses(const Dist& p, const Dist& q) { return masses(Residual{p}, q); }
  SPECDEC_DEVICE void clipped_sums(const Dist& p, const Dist& q, const float (&t)[kCandidates],
                                   double (&out)[kCandidates]) {
    clipped_sums(Residual{p}, q, t, out);
  }

  // p and q must be in memory, since their addresses are taken.
  SPECDEC_DEVICE double tv(const Dist& p, const Dist& q) { return apart::pair_sum(&p, &q, next_sums()); }

  SPECDEC_DEVICE double entropy(const Dist& d) {
    if (d.kind == Kind::kOneHot) return 0;
    if (d.kind == Kind::kProbs && !(largest_prob(d) > 0)) return NAN;
    const bool logits = d.kind == Kind::kLogits;
    const double sum = apart::entropy_sum(d.row, d.stats, logits, next_sums());
    return logits ? entropy_of(d.stats, sum) : sum;
  }
  SPECDEC_DEVICE PairGap gap(const Dist& p, const Dist& q) {
    const PairMass mass = masses(p, q);
    const float t[kCandidates] = {1, 1, 1, 1};
    double under[kCandidates];
    clipped_sums(p, q, t, under);
    return {under[0], mass.p > under[0] ? mass.p - under[0] : 0, entropy(p), entropy(q)};
  }
  // These announce sums. The CPU then computes several sums in one pass. Here each sum is a pass of its own.
  SPECDEC_DEVICE void expect_entropy(bool) const {}
  SPECDEC_DEVICE void expect_gap(const Dist&, const Dist&) const {}
  // The largest probability of a row; NaN if it holds NaN or inf, or nothing positive
  SPECDEC_DEVICE double largest_prob(const Dist& d) {
    float* const most = next_sums();
    return d.row.is_listed() ? apart::largest_sum(d.row, d.stats, most) : apart::largest_prob(d.row, most);
  }
  // How many entries are larger than `least`
  SPECDEC_DEVICE int64_t above(const Row& row, float least) {
    return int64_t(apart::count_above(row, least, next_sums()));
  }
  // The mass of the mixture's q on ids that are >= V or that the mixture does not keep
  SPECDEC_DEVICE double deferred(const Mixture& mixture, int64_t V) {
    const Dist& q = mixture.q;
    if (q.kind == Kind::kOneHot) return q.hot < V && mixture.keeps(q.hot) ? 0 : 1;
    return apart::deferred_sum(&mixture, V, next_sums());
  }

 protected:
  // One copy for all threads of the block, in shared memory: a pointer to a variable of a thread would put that
  // variable on the stack.
  SPECDEC_DEVICE apart::Pair& shared() const {
    __shared__ Uninitialised<apart::Pair> room;
    return room.get();
  }
  SPECDEC_DEVICE apart::Pair& shared(const Residual& p, const Dist* q = nullptr) const {
    __syncthreads();
    if (keeps()) {
      shared().p = p;
      if (q) shared().q = *q;
    }
    __syncthreads();
    return shared();
  }
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The CUDA Executor for walks by a rule: a residual may begin with a mixture, and rules need the entropy and the
// largest probability of rows.
#pragma once

#include "mixture_passes.cuh"

namespace specdec {

// A ResidualExecutor that also has mixtures and what rules need of rows. Kernels of walks without a rule do not contain
// this code.
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
  // The CPU computes announced sums in passes that it makes anyway. Here each sum is a pass of its own.
  SPECDEC_DEVICE void expect_entropy(bool) const {}
  SPECDEC_DEVICE void expect_gap(const Dist&, const Dist&) const {}
  // The largest probability of a row; NaN if it holds NaN or inf, or nothing positive
  SPECDEC_DEVICE double largest_prob(const Dist& d) {
    return d.row.is_listed() ? apart::largest_prob_by_id(d.row, d.stats, next_sums())
                             : apart::largest_prob(d.row, next_sums());
  }
  // How many entries are larger than `least`
  SPECDEC_DEVICE int64_t above(const Row& row, float least) {
    return int64_t(apart::count_above(row, least, next_sums()));
  }
  // The mass of the mixture's q where it is not kept, or on ids beyond V
  SPECDEC_DEVICE double deferred(const Mixture& mixture, int64_t V) {
    const Dist& q = mixture.q;
    if (q.kind == Kind::kOneHot) return q.hot < V && mixture.keeps(q.hot) ? 0 : 1;
    return apart::deferred_sum(&mixture, V, next_sums());
  }

 protected:
  // A copy for all threads, in shared memory: a pointer to a variable of a thread would put that variable on the stack.
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

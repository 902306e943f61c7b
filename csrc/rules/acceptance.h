// SPDX-License-Identifier: Apache-2.0
// Rules that say when a draft is accepted, and no more: what is emitted then has no law that could take the place of p.
#pragma once

#include "confidence.h"
#include "rule.h"

namespace specdec {

// Of a target that is greedy: p1(d) >= l max p1 (Leviathan et al. 2023, A.5).
SPECDEC_HD bool lenient_argmax(const Dist& p, int64_t d, double l) {
  return d < p.row.V && double(p.row.entry(d)) - p.stats.max >= log(l);
}

// Medusa's typical acceptance (Cai et al. 2024): p(d) > min(eps, delta exp(-H(p))). The entropy is summed only where
// its bounds, 0 <= exp(-H) <= max p, leave the test open.
template <class Executor>
SPECDEC_WALK bool typical(Executor& executor, const Dist& p, double p_d, double eps, double delta) {
  if (p_d > eps) return true;
  if (!(p_d > 0)) return false;
  if (p.kind == Kind::kLogits && p_d > delta * exp(-double(p.stats.log_norm))) return true;
  return p_d > delta * exp(-executor.entropy(p));
}

// TensorRT-LLM's relaxed acceptance, of the unscaled row: fewer than n ids are more probable than d, p1(d) >= max p1 -
// delta and p1(d) > 0.
template <class Executor>
SPECDEC_WALK bool among_top(Executor& executor, const Dist& p, int64_t d, double n, double delta) {
  const Dist p1 = unscaled(executor, p);
  const double p_d = p1.prob(d);
  if (!(p_d > 0 && p_d >= largest(executor, p1) - delta)) return false;
  return double(executor.above(p1.row, p1.row.entry(d))) < n;
}

// The rules that read p alone; d is of p's vocabulary.
template <class Executor>
SPECDEC_WALK bool accept_by_target(Executor& executor, Rule rule, const Alpha& alpha, const Dist& p, int64_t d,
                                   double u) {
  switch (rule) {
    case Rule::kTypical: return typical(executor, p, p.prob(d), alpha.first, alpha.second);
    case Rule::kRelaxed: return among_top(executor, p, d, alpha.first, alpha.second);
    case Rule::kThresholds:
      return p.prob(d) >= alpha.first || u * alpha.second < p.prob(d);  // SGLang's, a tree with one child per node
    default: return false;
  }
}

}  // namespace specdec

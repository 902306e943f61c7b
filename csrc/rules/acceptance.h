// SPDX-License-Identifier: Apache-2.0
// Rules that only decide whether a draft is accepted. They do not replace p by a distribution pi.
#pragma once

#include "confidence.h"
#include "rule.h"

namespace specdec {

// Lenience with a greedy target: accepts draft d if p1(d) >= l max p1, where p1 is the softmax at T = 1 (Leviathan et
// al. 2023, A.5).
SPECDEC_HD bool lenient_argmax(const Dist& p, int64_t d, double l) {
  return d < p.row.V && double(p.row.entry(d)) - p.stats.max >= log(l);
}

// Medusa's typical acceptance (Cai et al. 2024): accepts draft d if p(d) > min(eps, delta exp(-H(p))), where H is the
// entropy. It is computed only if the bounds 0 <= exp(-H) and, for rows of logits, exp(-H) <= max p do not decide the
// test.
template <class Executor>
SPECDEC_WALK bool typical(Executor& executor, const Dist& p, double p_d, double eps, double delta) {
  if (p_d > eps) return true;
  if (!(p_d > 0)) return false;
  if (p.kind == Kind::kLogits && p_d > delta * exp(-double(p.stats.log_norm))) return true;
  return p_d > delta * exp(-executor.entropy(p));
}

// TensorRT-LLM's relaxed acceptance. It accepts draft d if p1(d) > 0, p1(d) >= max p1 - delta, and fewer than n ids are
// more probable than d. p1 is the softmax at T = 1 without filters.
template <class Executor>
SPECDEC_WALK bool among_top(Executor& executor, const Dist& p, int64_t d, double n, double delta) {
  const Dist p1 = unscaled(executor, p);
  const double p_d = p1.prob(d);
  if (!(p_d > 0 && p_d >= largest(executor, p1) - delta)) return false;
  return double(executor.above(p1.row, p1.row.entry(d))) < n;
}

// The tests of the rules that read only p. d is an id of p's vocabulary.
template <class Executor>
SPECDEC_WALK bool accept_by_target(Executor& executor, Rule rule, const Alpha& alpha, const Dist& p, int64_t d,
                                   double u) {
  switch (rule) {
    case Rule::kTypical: return typical(executor, p, p.prob(d), alpha.first, alpha.second);
    case Rule::kRelaxed: return among_top(executor, p, d, alpha.first, alpha.second);
    case Rule::kThresholds:
      return p.prob(d) >= alpha.first || u * alpha.second < p.prob(d);  // as SGLang does if each node has one child
    default: return false;
  }
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The rules that replace p by a distribution pi made from p and q. pi is made in two steps, because the second, a sum
// over V, can often be skipped.
#pragma once

#include "cascade.h"
#include "lossy.h"

namespace specdec {

// The first step: make_rule_dist(). p and q must be valid, and pi.dist must be p. Leaves pi = p if that is the rule's
// result.
template <class Executor>
SPECDEC_WALK void make_rule_dist(Executor& executor, Rule rule, double alpha, const Dist& p, const Dist& q,
                                 RuleDist& pi) {
  switch (rule) {
    case Rule::kChow:
    case Rule::kChowLog:
    case Rule::kDiff:
    case Rule::kDiffLog:
    case Rule::kOpt:
    case Rule::kOptLog:
      if (q.kind == Kind::kOneHot && q.beyond(p.row.V)) return;  // pi is p; the code below would give the same result
      if (!keeps_row(executor, rule, alpha, p, q)) return;
      return once(executor, [&] {
        pi.mixed = pi.open = q.beyond(p.row.V);  // q's mass on ids >= V is spread in proportion to p
        if (pi.mixed)
          pi.mixture.q = q, pi.mixture.of_p = 0, pi.mixture.of_q = 1;
        else
          pi.dist = q;
      });
    case Rule::kTokenV1:
    case Rule::kTokenV2:
    case Rule::kTokenV3: return token_rule(executor, rule, alpha, p, q, pi);
    case Rule::kLossy:
      if (p.kind == Kind::kOneHot) return;
      return once(executor, [&] {
        pi.mixed = pi.open = pi.mixture.capped = true;
        pi.mixture.q = q, pi.mixture.of_p = 0, pi.mixture.of_q = float(1 / (1 - alpha));
      });
    case Rule::kEnsemble:
      return once(executor, [&] {
        pi.mixed = true;
        pi.open = q.beyond(p.row.V);
        pi.mixture.q = q, pi.mixture.of_p = float(alpha), pi.mixture.of_q = float(1 - alpha);
      });
    default: return;
  }
}

// The second step: complete() adds the term of of_p that is a sum over V. If a row is invalid, pi becomes p.
// `subtraction` is scratch space in the executor's memory.
template <class Executor>
SPECDEC_WALK void complete(Executor& executor, double alpha, RuleDist& pi, Subtraction& subtraction) {
  if (!pi.open) return;
  const double of_p = pi.mixture.capped
                          ? lossy_scale(executor, pi.dist, pi.mixture.q, alpha, subtraction)
                          : pi.mixture.of_p + pi.mixture.of_q * executor.deferred(pi.mixture, pi.dist.row.V);
  once(executor, [&] {
    pi.open = false;
    pi.mixed = of_p == of_p;
    pi.mixture.of_p = float(of_p);
  });
}

// The acceptance test under pi. While pi is open, prob(d) is a lower bound. If it already accepts, pi is not completed.
template <class Executor>
SPECDEC_WALK bool accept_by(Executor& executor, double alpha, RuleDist& pi, Subtraction& subtraction, int64_t d,
                            double q_d, double u) {
  if (accept(pi.prob(d), q_d, u)) return true;
  if (!pi.open) return false;
  complete(executor, alpha, pi, subtraction);
  return accept(pi.prob(d), q_d, u);
}

}  // namespace specdec

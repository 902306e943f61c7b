// SPDX-License-Identifier: Apache-2.0
// Speculative cascades (Narasimhan et al. 2024). Every test has the form "keep the draft if x <= y", so a NaN defers to
// the target.
#pragma once

#include "confidence.h"
#include "rule_dist.h"
#include "rule.h"

namespace specdec {

// Whether pi = q, apart from ids >= V (make_rule_dist.h). That is the case if the draft's expected loss exceeds the
// target's by at most alpha; for kOpt and kOptLog, by at most alpha TV(p, q). The expected loss of a distribution is
// its entropy for the rules with "Log" in their name (log loss), else 1 minus its largest probability (0-1 loss).
// Chow's rules take the target's expected loss as 0.
template <class Executor>
SPECDEC_WALK bool keeps_row(Executor& executor, Rule rule, double alpha, const Dist& p, const Dist& q) {
  const bool of_log = rule == Rule::kChowLog || rule == Rule::kDiffLog || rule == Rule::kOptLog;
  if (rule == Rule::kOptLog && is_unscaled(p) && is_unscaled(q)) executor.expect_gap(p, q);
  const Dist q1 = unscaled(executor, q);
  double confidence_gap = of_log ? executor.entropy(q1) : 1 - largest(executor, q1);
  if (rule != Rule::kChow && rule != Rule::kChowLog) {
    const Dist p1 = unscaled(executor, p);
    confidence_gap -= of_log ? executor.entropy(p1) : 1 - largest(executor, p1);
  } else if (confidence_gap <= alpha && p.kind == Kind::kProbs && !(largest(executor, p) > 0)) {
    return false;  // a probability row must be read to find that it is invalid
  }
  if (rule != Rule::kOpt && rule != Rule::kOptLog) return confidence_gap <= alpha;
  // TV is in [0, 1], so in these cases it need not be computed.
  if (!(confidence_gap > 0) || !(confidence_gap <= alpha)) return confidence_gap <= 0;
  return confidence_gap <= alpha * (p.kind == Kind::kOneHot ? 1 - draft_prob(q.prob(p.hot)) : executor.tv(p, q));
}

// Sets pi(v) = (q(v) if the rule keeps v, else 0) + eta p(v), where eta is the mass of q on ids that are not kept. If a
// row is invalid, pi stays p.
template <class Executor>
SPECDEC_WALK void token_rule(Executor& executor, Rule rule, double alpha, const Dist& p, const Dist& q, RuleDist& pi) {
  const Dist p1 = unscaled(executor, p);
  const double most = largest(executor, p1);
  if (!(most > 0) || !(largest(executor, q) > 0)) return;
  const Dist score_row = rule == Rule::kTokenV1 ? unscaled(executor, q) : p1;
  const double top = rule == Rule::kTokenV1 ? largest(executor, score_row) : most;
  once(executor, [&] {
    pi.mixed = pi.open = true;
    pi.mixture.q = q, pi.mixture.of_p = 0, pi.mixture.of_q = 1;
    pi.mixture.score_row = score_row,
    pi.mixture.threshold = threshold_at(score_row, top, rule == Rule::kTokenV3 ? 1 - alpha : (most - alpha) / top);
  });
}

}  // namespace specdec

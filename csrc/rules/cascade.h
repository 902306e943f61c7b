// SPDX-License-Identifier: Apache-2.0
// Speculative cascades (Narasimhan et al. 2024). Every test is written as "keep the draft iff", so that NaN defers to the target.
#pragma once

#include "confidence.h"
#include "rule_dist.h"
#include "rule.h"

namespace specdec {

// pi = q where the draft's expected loss exceeds the target's by no more than alpha, or alpha TV(p, q): 1 - max under the 0-1 loss,
// the entropy under the log loss. Chow's rule takes the target's loss to be 0.
template <class Team>
SPECDEC_WALK bool keeps_row(Team& team, Rule rule, double alpha, const Dist& p, const Dist& q) {
  const bool of_log = rule == Rule::kChowLog || rule == Rule::kDiffLog || rule == Rule::kOptLog;
  if (rule == Rule::kOptLog && is_unscaled(p) && is_unscaled(q)) team.expect_gap(p, q);
  const Dist q1 = unscaled(team, q);
  double lack = of_log ? team.entropy(q1) : 1 - largest(team, q1);
  if (rule != Rule::kChow && rule != Rule::kChowLog) {
    const Dist p1 = unscaled(team, p);
    lack -= of_log ? team.entropy(p1) : 1 - largest(team, p1);
  } else if (lack <= alpha && p.kind == Kind::kProbs && !(largest(team, p) > 0)) {
    return false;  // whether probabilities are a law is not known before they are read
  }
  if (rule != Rule::kOpt && rule != Rule::kOptLog) return lack <= alpha;
  if (!(lack > 0) || !(lack <= alpha)) return lack <= 0;  // TV lies in [0, 1]
  return lack <= alpha * (p.kind == Kind::kOneHot ? 1 - draft_prob(q.prob(p.hot)) : team.tv(p, q));
}

// pi(v) = q(v) where the rule keeps v, plus eta p(v) with eta the mass of q that it does not keep.
template <class Team>
SPECDEC_WALK void token_rule(Team& team, Rule rule, double alpha, const Dist& p, const Dist& q, Pi& pi) {
  const Dist p1 = unscaled(team, p);
  const double most = largest(team, p1);
  if (!(most > 0) || !(largest(team, q) > 0)) return;
  const Dist ruler = rule == Rule::kTokenV1 ? unscaled(team, q) : p1;
  const double top = rule == Rule::kTokenV1 ? largest(team, ruler) : most;
  once(team, [&] {
    pi.blended = pi.open = true;
    pi.blend.q = q, pi.blend.of_p = 0, pi.blend.of_q = 1;
    pi.blend.ruler = ruler, pi.blend.cut = cut_at(ruler, top, rule == Rule::kTokenV3 ? 1 - alpha : (most - alpha) / top);
  });
}

}  // namespace specdec

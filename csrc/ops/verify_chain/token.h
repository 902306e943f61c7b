// SPDX-License-Identifier: Apache-2.0
// Token-level verification of one request by any rule.
#pragma once

#include "../../rules/acceptance.h"
#include "position.h"

namespace specdec {

template <class Team>
SPECDEC_WALK bool accepts(Team& team, const VerifyChain& a, int64_t b, int64_t i, Place& x) {
  if (!x.tested) return false;
  const Rule rule = a.rules[b];
  const Alpha alpha = a.rules.parameters(b);
  const int64_t d = a.draft_token(b, i);
  const double u = a.accept_uniform(b, i);
  if (replaces_target(rule)) return accept_by(team, alpha.first, x.pi, x.link, d, x.q_d, u);
  if (rule != Rule::kLenience) return accept_by_target(team, rule, alpha, x.p, d, u);
  return accept(x.p.prob(d), x.q_d, alpha.first * u) || (x.p.kind == Kind::kOneHot && lenient_argmax(x.p, d, alpha.first));
}

template <class Team>
SPECDEC_WALK void verify_tokens(Team& team, const VerifyChain& a, int64_t b, Place& x) {
  once(team, [&] { x.r = 1; });
  for (int64_t i = 0;; ++i) {
    look(team, a, b, i, x);
    if (!accepts(team, a, b, i, x)) return finish(team, a, b, i, Stop{x, x.status});
    if (team.leads()) keep_draft(a, b, i, x.p);
  }
}

}  // namespace specdec

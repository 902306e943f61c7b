// SPDX-License-Identifier: Apache-2.0
// The rules that are laws: pi = T(q, p), in two steps, since what costs a pass over V is often not needed.
#pragma once

#include "cascade.h"
#include "lossy.h"

namespace specdec {

// p and q are laws, and pi stands at p.
template <class Team>
SPECDEC_WALK void make_law(Team& team, Rule rule, double alpha, const Dist& p, const Dist& q, Pi& pi) {
  switch (rule) {
    case Rule::kChow: case Rule::kChowLog: case Rule::kDiff: case Rule::kDiffLog: case Rule::kOpt: case Rule::kOptLog:
      if (q.kind == Kind::kOneHot && q.hot >= p.row.V) return;
      if (!keeps_row(team, rule, alpha, p, q)) return;
      return once(team, [&] {
        pi.blended = pi.open = q.kind != Kind::kOneHot && q.row.V > p.row.V;  // what q holds beyond p's vocabulary is left to p
        if (pi.blended)
          pi.blend.q = q, pi.blend.of_p = 0, pi.blend.of_q = 1;
        else
          pi.law = q;
      });
    case Rule::kTokenV1: case Rule::kTokenV2: case Rule::kTokenV3: return token_rule(team, rule, alpha, p, q, pi);
    case Rule::kLossy:
      if (p.kind == Kind::kOneHot) return;
      return once(team, [&] {
        pi.blended = pi.open = pi.blend.capped = true;
        pi.blend.q = q, pi.blend.of_p = 0, pi.blend.of_q = float(1 / (1 - alpha));
      });
    case Rule::kEnsemble:
      return once(team, [&] {
        pi.blended = true;
        pi.open = q.kind == Kind::kOneHot ? q.hot >= p.row.V : q.row.V > p.row.V;
        pi.blend.q = q, pi.blend.of_p = float(alpha), pi.blend.of_q = float(1 - alpha);
      });
    default: return;
  }
}

// `link` lies in the team's memory and is free.
template <class Team>
SPECDEC_WALK void complete(Team& team, double alpha, Pi& pi, Link& link) {
  if (!pi.open) return;
  const double of_p = pi.blend.capped ? lossy_scale(team, pi.law, pi.blend.q, alpha, link)
                                      : pi.blend.of_p + pi.blend.of_q * team.deferred(pi.blend, pi.law.row.V);
  once(team, [&] {
    pi.open = false;
    pi.blended = of_p == of_p;
    pi.blend.of_p = float(of_p);
  });
}

// The acceptance test under pi. Where what is known of it already accepts, the rest of pi is never summed.
template <class Team>
SPECDEC_WALK bool accept_by(Team& team, double alpha, Pi& pi, Link& link, int64_t d, double q_d, double u) {
  if (accept(pi.prob(d), q_d, u)) return true;
  if (!pi.open) return false;
  complete(team, alpha, pi, link);
  return accept(pi.prob(d), q_d, u);
}

}  // namespace specdec

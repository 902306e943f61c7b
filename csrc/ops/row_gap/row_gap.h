// SPDX-License-Identifier: Apache-2.0
// How far a draft's row is from the target's, and how sure each of them is.
#pragma once

#include "../../core/pair_sums.h"
#include "../../rules/confidence.h"

namespace specdec {

struct Gap {
  double tv, overlap, entropy_p, entropy_q, max_p, max_q;
};

// What depends on a row that is no law is NaN.
template <class Team>
SPECDEC_WALK Gap row_gap(Team& team, const Dist& p, const Dist& q) {
  const double max_p = largest(team, p), max_q = largest(team, q);
  const bool laws = max_p > 0 && max_q > 0;
  const PairGap x = laws ? team.gap(p, q) : PairGap{NAN, NAN, team.entropy(p), team.entropy(q)};
  return {x.tv, x.overlap, x.entropy_p, x.entropy_q, max_p, max_q};
}

}  // namespace specdec

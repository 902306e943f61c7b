// SPDX-License-Identifier: Apache-2.0
// How far a draft's row is from the target's, and how sure each of them is.
#pragma once

#include "../common/pair_sums.h"
#include "../rules/confidence.h"

namespace specdec {

struct Gap {
  double tv, overlap, entropy_p, entropy_q, max_p, max_q;
};

// What depends on a row that is no law is NaN.
template <class Team>
SPECDEC_WALK Gap row_gap(Team& team, const Dist& p, const Dist& q) {
  Gap gap{NAN, NAN, team.entropy(p), team.entropy(q), largest(team, p), largest(team, q)};
  if (!(gap.max_p > 0) || !(gap.max_q > 0)) return gap;
  const PairMass mass = team.masses(p, q);
  if (!(mass.p > 0)) return gap;
  const float t[kCandidates] = {1, 1, 1, 1};
  double unders[kCandidates];
  team.unders(p, q, t, unders);
  gap.tv = unders[0], gap.overlap = mass.p > unders[0] ? mass.p - unders[0] : 0;
  return gap;
}

}  // namespace specdec

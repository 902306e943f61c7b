// SPDX-License-Identifier: Apache-2.0
// The law that a rule puts in the place of the target's.
#pragma once

#include "../core/residual.h"

namespace specdec {

// One thread of a team does what all of them see afterwards.
template <class Team, class F>
SPECDEC_WALK void once(Team& team, const F& f) {
  team.sync();
  if (team.leads()) f();
  team.sync();
}

struct Pi {
  Dist law;              // p, or q
  Blend blend;           // of p and q, where `blended`
  bool blended = false;
  bool open = false;     // of_p lacks what a sum over V will tell: prob() is at most that of the law

  SPECDEC_HD double prob(int64_t v) const { return Chain{law, nullptr, 0, blended ? &blend : nullptr}.weight(v); }
  SPECDEC_HD bool hot() const { return !blended && law.kind == Kind::kOneHot; }
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The law that a rule puts in the place of the target's.
#pragma once

#include "../core/residual.h"

namespace specdec {

// What is to be done once in memory that an executor keeps, for all its threads to see afterwards
template <class Executor, class F>
SPECDEC_WALK void once(Executor& executor, const F& f) {
  executor.sync();
  if (executor.keeps()) f();
  executor.sync();
}

struct RuleDist {
  Dist dist;        // p, or q
  Mixture mixture;  // of p and q, where `mixed`
  bool mixed = false;
  bool open = false;  // of_p lacks what a sum over V will tell: prob() is at most that of pi

  SPECDEC_HD double prob(int64_t v) const { return Residual{dist, nullptr, 0, mixed ? &mixture : nullptr}.weight(v); }
  SPECDEC_HD bool hot() const { return !mixed && dist.kind == Kind::kOneHot; }
};

}  // namespace specdec

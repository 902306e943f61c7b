// SPDX-License-Identifier: Apache-2.0
// The distribution pi that a rule uses instead of the target's distribution p
#pragma once

#include "../core/residual.h"

namespace specdec {

// Runs f(), which writes memory shared by the executor's threads, in the threads for which keeps() is true: one of each
// block on a GPU. All threads see the result afterwards.
template <class Executor, class F>
SPECDEC_WALK void once(Executor& executor, const F& f) {
  executor.sync();
  if (executor.keeps()) f();
  executor.sync();
}

struct RuleDist {
  Dist dist;        // p, unless the rule uses q in its place
  Mixture mixture;  // of p and q; used if `mixed`
  bool mixed = false;
  bool open = false;  // mixture.of_p lacks a term, a sum over V; then prob(v) <= pi(v)

  SPECDEC_HD double prob(int64_t v) const { return Residual{dist, nullptr, 0, mixed ? &mixture : nullptr}.weight(v); }
  SPECDEC_HD bool hot() const { return !mixed && dist.kind == Kind::kOneHot; }
};

}  // namespace specdec

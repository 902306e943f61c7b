// SPDX-License-Identifier: Apache-2.0
// The distribution pi that a rule uses instead of p
#pragma once

#include "../core/residual.h"

namespace specdec {

// Runs f(), which writes an executor's memory, in a thread that keeps() it. All its threads see the result afterwards.
template <class Executor, class F>
SPECDEC_WALK void once(Executor& executor, const F& f) {
  executor.sync();
  if (executor.keeps()) f();
  executor.sync();
}

struct RuleDist {
  Dist dist;        // p or q
  Mixture mixture;  // of p and q, where `mixed`
  bool mixed = false;
  bool open = false;  // of_p lacks a term that is a sum over V; until then prob(v) <= pi(v)

  SPECDEC_HD double prob(int64_t v) const { return Residual{dist, nullptr, 0, mixed ? &mixture : nullptr}.weight(v); }
  SPECDEC_HD bool hot() const { return !mixed && dist.kind == Kind::kOneHot; }
};

}  // namespace specdec

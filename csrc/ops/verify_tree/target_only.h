// SPDX-License-Identifier: Apache-2.0
// Acceptance by the target distribution alone, however the tree was drafted. Each child has an interval of [0, 1) whose
// length is the target's probability of its token; the intervals follow one another from 0. The child whose interval
// contains the node's uniform is accepted. A second child with the same token is skipped. The rule "thresholds" divides
// the intervals by its second threshold, and also accepts a child whose probability is at least the first.
#pragma once

#include "walk.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK int32_t accept_by_target(Walk<Executor>& walk, Tests tests) {
  const double test_uniform = walk.test_uniform(walk.node);
  double single = 1, acc = 1;
  if (walk.by_rule()) {
    const Alpha thresholds = walk.a.rules.parameters(walk.b);
    single = thresholds.first, acc = thresholds.second;
  }
  double seen = 0;
  for (Test t = walk.next(tests); t.child >= 0; t = walk.next(tests)) {
    const int64_t token = walk.token(t.child);
    if (walk.is_removed(token)) continue;
    const double p = walk.rest.p.prob(token);
    seen += p;
    if (seen != seen) return -1;
    if (p >= single || test_uniform * acc < seen) return t.child;
    Subtraction subtraction = subtracting(one_hot(token));
    subtraction.removed = token;
    walk.push(subtraction);
  }
  return -1;
}

template <class Executor>
SPECDEC_WALK void walk_target_only(Walk<Executor>& walk) {
  descend(walk, [](Walk<Executor>& w, const Tests& tests) { return accept_by_target(w, tests); });
}

}  // namespace specdec

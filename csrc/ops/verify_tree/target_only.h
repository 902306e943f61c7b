// SPDX-License-Identifier: Apache-2.0
// Acceptance by the target's law alone, for trees of any making: one coin falls on [0, 1), the children's probabilities are
// laid from 0 on one after the other, and the child it falls on is accepted. A second child of the same token is skipped. The rule
// "thresholds" divides what is laid by its second threshold, and accepts a child whose probability reaches the first.
#pragma once

#include "walk.h"

namespace specdec {

template <class Team>
SPECDEC_WALK int32_t accept_by_target(Walk<Team>& walk, Tests tests) {
  const double coin = walk.coin(walk.node);
  double single = 1, acc = 1;
  if (walk.by_rule()) {
    const Alpha thresholds = walk.a.rules.parameters(walk.b);
    single = thresholds.first, acc = thresholds.second;
  }
  double seen = 0;
  for (Test t = walk.next(tests); t.child >= 0; t = walk.next(tests)) {
    const int64_t token = walk.token(t.child);
    if (walk.is_gone(token)) continue;
    const double p = walk.rest.p.prob(token);
    seen += p;
    if (seen != seen) return -1;
    if (p >= single || coin * acc < seen) return t.child;
    Link link = subtracting(one_hot(token));
    link.gone = token;
    walk.push(link);
  }
  return -1;
}

template <class Team>
SPECDEC_WALK void walk_target_only(Walk<Team>& walk) {
  descend(walk, [](Walk<Team>& w, const Tests& tests) { return accept_by_target(w, tests); });
}

}  // namespace specdec

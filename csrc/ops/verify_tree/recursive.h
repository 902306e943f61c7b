// SPDX-License-Identifier: Apache-2.0
// Recursive rejection (with replacement: SpecInfer, Miao et al. 2023; without: Sequoia, Chen et al. 2024). At a node, r
// starts as p. The children are tested in the order in which they were drawn. A child x ~ q is accepted with
// probability min(1, r(x) / q(x)). If it is rejected, r becomes norm((r - q)+). Without replacement, x is then removed
// from q, and a second child with the same token is skipped.
#pragma once

#include "walk.h"

namespace specdec {

template <bool kReplacement, class Executor>
SPECDEC_WALK int32_t accept_recursively(Walk<Executor>& walk, Tests tests) {
  for (Test t = walk.next(tests); t.child >= 0; t = walk.next(tests)) {
    const int64_t token = walk.token(t.child);
    if (!kReplacement && walk.is_removed(token)) continue;
    const double r = walk.residual(token);
    if (r != r) return -1;
    walk.look_up(t.child);
    const Left left = kReplacement ? walk.all_of(walk.dist_of(t.child)) : walk.left_of(t.child);
    const double q_t = walk.draft_of(t.child, left);
    if (accept(r, q_t, walk.test_uniform(t.column))) return t.child;
    if (left.any && walk.complete_pi() && accept(walk.residual(token), q_t, walk.test_uniform(t.column)))
      return t.child;
    const double kept = walk.reduce(walk.dist_of(t.child, left), 1, 1 / left.share, kReplacement ? -1 : token);
    if (kept != kept) return -1;
    if (kept == 0 && left.any) walk.status |= kEmptyResidual;
  }
  return -1;
}

template <bool kReplacement, class Executor>
SPECDEC_WALK void walk_recursively(Walk<Executor>& walk) {
  descend(walk, [](Walk<Executor>& w, const Tests& tests) { return accept_recursively<kReplacement>(w, tests); });
}

}  // namespace specdec

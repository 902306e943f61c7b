// SPDX-License-Identifier: Apache-2.0
// Verification of one tree by the race (core/race.h): the winner at a node is emitted, and if a child has this token,
// the walk goes on at that child. No draft row is read. If siblings have the same token, the first is accepted.
#pragma once

#include "../../core/race.h"
#include "walk.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK void verify_by_race(Executor& executor, const VerifyTree& a, int64_t b) {
  Walk<Executor> walk(executor, a, b, {});
  if (a.bad_tree(b)) walk.status |= kInvalidDraft;
  while (true) {
    const Dist p = walk.target(walk.node);
    int32_t status = 0;
    const Final y = winner(executor, p, a.noise(b, walk.node, walk.depth), status);
    walk.status |= status;
    Tests tests = tests_at(walk.node, walk.depth);
    if (status) return walk.put_final(y);
    if (p.kind != Kind::kOneHot) walk.flag_outside(tests);
    Test test = tests.next(a, b);
    while (test.child >= 0 && walk.token(test.child) != y.token) test = tests.next(a, b);
    if (test.child < 0) return walk.put_final(y);
    walk.emit(test.child, p);
  }
}

}  // namespace specdec

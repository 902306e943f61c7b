// SPDX-License-Identifier: Apache-2.0
// Greedy decoding on a tree: accepts the child with the target's argmax, as long as there is one. If siblings have the
// same token, the first is accepted.
#pragma once

#include "walk.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK void walk_greedily(Walk<Executor>& walk) {
  descend(walk, [](Walk<Executor>&, const Tests&) { return -1; });
}

}  // namespace specdec

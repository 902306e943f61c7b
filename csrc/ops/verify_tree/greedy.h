// SPDX-License-Identifier: Apache-2.0
// Greedy decoding on a tree: follow the argmax while it was drafted; the first of equal siblings wins.
#pragma once

#include "walk.h"

namespace specdec {

template <class Executor>
SPECDEC_WALK void walk_greedily(Walk<Executor>& walk) {
  descend(walk, [](Walk<Executor>&, const Tests&) { return -1; });
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// What a rule makes of a node: the distribution pi in the place of the target's.
#pragma once

#include "../../core/final_token.h"
#include "../../rules/make_rule_dist.h"
#include "tree.h"

namespace specdec {

// In memory that the whole executor can read
struct NodeDist {
  Dist p, q;         // the target's own distribution, and the one of the first child's draft
  int64_t row = -1;  // of q; -1: none
  RuleDist pi;
  Subtraction subtraction;
};

}  // namespace specdec

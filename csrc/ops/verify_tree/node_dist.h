// SPDX-License-Identifier: Apache-2.0
// A node's distributions under a rule: p, q, and the distribution pi that replaces the target's.
#pragma once

#include "../../core/final_token.h"
#include "../../rules/make_rule_dist.h"
#include "tree.h"

namespace specdec {

// The distributions of one node, in memory that all threads of the executor can read
struct NodeDist {
  Dist p, q;         // the target's own distribution, and the one that the first child was drawn from
  int64_t row = -1;  // index of q's row; -1: none
  RuleDist pi;
  Subtraction subtraction;
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// What a rule makes of a node: the law pi in the place of the target's.
#pragma once

#include "../../core/final_token.h"
#include "../../rules/make_rule_dist.h"
#include "tree.h"

namespace specdec {

// It lies in memory that the whole executor sees.
struct NodeDist {
  Dist p, q;         // the target's own, and the law that the first child was drawn from
  int64_t row = -1;  // of q; -1: none
  RuleDist pi;
  Subtraction subtraction;
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The distance between a target row and a draft row, and the confidence of each.
#pragma once

#include "../../core/pair_sums.h"
#include "../../rules/confidence.h"

namespace specdec {

struct Gap {
  double tv, overlap, entropy_p, entropy_q, max_p, max_q;
};

// A value that depends on an invalid row is NaN.
template <class Executor>
SPECDEC_WALK Gap row_gap(Executor& executor, const Dist& p, const Dist& q) {
  const double max_p = largest(executor, p), max_q = largest(executor, q);
  const bool valid = max_p > 0 && max_q > 0;
  const PairGap x = valid ? executor.gap(p, q) : PairGap{NAN, NAN, executor.entropy(p), executor.entropy(q)};
  return {x.tv, x.overlap, x.entropy_p, x.entropy_q, max_p, max_q};
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The distance between a target row and a draft row, and the confidence of each.
#pragma once

#include "../../core/pair_sums.h"
#include "../../core/row_pairs.h"
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

struct RowGap : RowPairs {
  static constexpr const char* kName = "row_gap";
  float* gaps = nullptr;  // [N, 6]

  SPECDEC_HD void write(int64_t n, const Gap& x) const {
    const double values[6] = {x.tv, x.overlap, x.entropy_p, x.entropy_q, x.max_p, x.max_q};
    for (int i = 0; i < 6; ++i) gaps[6 * n + i] = float(values[i]);
  }
};

}  // namespace specdec

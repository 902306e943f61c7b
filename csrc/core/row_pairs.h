// SPDX-License-Identifier: Apache-2.0
// N pairs of a target row and a draft row: the input of kseq_rho and row_gap
#pragma once

#include <algorithm>

#include "arguments.h"

namespace specdec {

struct RowPairs {
  int64_t N = 0;
  RowMemory p;                                         // [N, V]
  SeenRows q;                                          // [N, Vq]
  const float *p_stats = nullptr, *q_stats = nullptr;  // [N, 4]; null: probabilities

  SPECDEC_HD Dist target(int64_t n) const { return dist(p.at(0, n), p_stats, n); }
  SPECDEC_HD Dist draft(int64_t n) const {
#ifndef SPECDEC_IN_CUDA
    return dist(q.at(0, n).by_ids(!q_stats), q_stats, n);
#else
    return dist(q.of_ids(n), q_stats, n);
#endif
  }
  bool has_ids() const { return bool(q.ids); }
  // An upper bound on the number of ids in sums over a pair
  int64_t widest() const { return std::max(p.V, q.ids.most(p.V, q.V)); }

 private:
  SPECDEC_HD static Dist dist(const Row& row, const float* stats, int64_t n) {
    return stats ? from_stats(row, stats_at(stats, n)) : from_probs(row);
  }
};

}  // namespace specdec

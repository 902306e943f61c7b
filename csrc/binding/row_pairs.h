// SPDX-License-Identifier: Apache-2.0
// N pairs of a target row and a draft row: the input of kseq_rho and row_gap
#pragma once

#include "entry_ids.h"

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

inline RowPairs row_pairs(const Op& op, const Tensor& p, const OptTensor& p_stats, const Tensor& q,
                          const OptTensor& q_stats, const OptTensor& q_ids) {
  RowPairs a;
  a.p = row_memory(op, {"p", "logits"}, p);
  a.N = p.size(0);
  a.q = {row_memory(op, {"q", "logits"}, q, "N, Vq"), {}, 0, {}};
  take_ids(op, "q", a.q.ids, q_ids, q, Present{});
  check_shape(op, {"q", "logits"}, q, {{"N", a.N}, {"Vq", a.q.V}});
  check(p_stats.has_value() == q_stats.has_value(), op, "p.stats and q.stats go together, got ",
        p_stats ? "p.stats" : "q.stats", " alone");
  if (p_stats) {
    check_shape(op, {"p", "stats"}, *p_stats, {{"N", a.N}, 4});
    check_shape(op, {"q", "stats"}, *q_stats, {{"N", a.N}, 4});
    a.p_stats = stats_pointer(op, {"p", "stats"}, *p_stats), a.q_stats = stats_pointer(op, {"q", "stats"}, *q_stats);
  }
  return a;
}

}  // namespace specdec

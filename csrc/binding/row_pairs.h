// SPDX-License-Identifier: Apache-2.0
// Makes the pairs of rows that kseq_rho and row_gap take.
#pragma once

#include "../core/row_pairs.h"
#include "entry_ids.h"

namespace specdec {

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

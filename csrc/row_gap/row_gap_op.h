// SPDX-License-Identifier: Apache-2.0
// From row_gap's tensors to its parameters, on any device; Run then does the work.
#pragma once

#include "../common/check.h"
#include "row_gap.h"

namespace specdec {

struct RowGap {
  int64_t N = 0;
  Rows p, q;                                           // [N, V], [N, Vq]
  const float *p_stats = nullptr, *q_stats = nullptr;  // [N, 4]; null: probabilities
  float* gaps = nullptr;                               // [N, 6]

  SPECDEC_HD Dist target(int64_t n) const { return dist(p, p_stats, n); }
  SPECDEC_HD Dist draft(int64_t n) const { return dist(q, q_stats, n); }
  SPECDEC_HD void write(int64_t n, const Gap& x) const {
    const double values[6] = {x.tv, x.overlap, x.entropy_p, x.entropy_q, x.max_p, x.max_q};
    for (int i = 0; i < 6; ++i) gaps[6 * n + i] = float(values[i]);
  }

 private:
  SPECDEC_HD static Dist dist(const Rows& rows, const float* stats, int64_t n) {
    const Row row = rows.at(0, n);
    return stats ? from_law(row, law_at(stats, n)) : from_probs(row);
  }
};

template <void (*Run)(const RowGap&, const Tensor& like)>
Tensor row_gap_op(const Tensor& p, const Tensor& q, const OptTensor& p_stats, const OptTensor& q_stats) {
  const Op op("row_gap", p);
  check_dim(op, "p", p, 2);
  RowGap a;
  const int64_t N = a.N = p.size(0);
  a.p = {p.const_data_ptr(), p.size(1), 0, p.stride(0), check_rows(op, "p", p)};
  check_dim(op, "q", q, 2);
  a.q = {q.const_data_ptr(), q.size(1), 0, q.stride(0), check_rows(op, "q", q)};
  check_shape(op, "q", q, {N, a.q.V});
  check(p_stats.has_value() == q_stats.has_value(), op, "p_stats and q_stats go together, got ", p_stats ? "p_stats" : "q_stats", " alone");
  if (p_stats) {
    check_shape(op, "p_stats", *p_stats, {N, 4});
    check_shape(op, "q_stats", *q_stats, {N, 4});
    a.p_stats = stats_pointer(op, "p_stats", *p_stats), a.q_stats = stats_pointer(op, "q_stats", *q_stats);
  }
  Tensor gaps = empty({N, 6}, ScalarType::Float, p);
  a.gaps = out_pointer<float>(gaps);
  if (N > 0) Run(a, p);
  return gaps;
}

}  // namespace specdec

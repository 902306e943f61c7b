// SPDX-License-Identifier: Apache-2.0
// Makes row_gap's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/row_pairs.h"
#include "row_gap.h"

namespace specdec {

struct RowGap : RowPairs {
  static constexpr const char* kName = "row_gap";
  float* gaps = nullptr;  // [N, 6]

  SPECDEC_HD void write(int64_t n, const Gap& x) const {
    const double values[6] = {x.tv, x.overlap, x.entropy_p, x.entropy_q, x.max_p, x.max_q};
    for (int i = 0; i < 6; ++i) gaps[6 * n + i] = float(values[i]);
  }
};

template <void (*Run)(const RowGap&, const Tensor& like)>
Tensor row_gap_op(const Tensor& p, const OptTensor& p_stats, const Tensor& q, const OptTensor& q_stats,
                  const OptTensor& q_ids) {
  const Op op("row_gap", p);
  check_given(op, "p", p, "q", q);
  RowGap a{row_pairs(op, p, p_stats, q, q_stats, q_ids), nullptr};
  Tensor gaps = result(op, {a.N, 6}, a.gaps);
  if (a.N > 0) Run(a, p);
  return gaps;
}

}  // namespace specdec

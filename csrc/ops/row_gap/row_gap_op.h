// SPDX-License-Identifier: Apache-2.0
// Makes row_gap's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/row_pairs.h"
#include "row_gap.h"

namespace specdec {

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

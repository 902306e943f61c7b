// SPDX-License-Identifier: Apache-2.0
// Makes budget's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/check.h"
#include "budget.h"

namespace specdec {

template <void (*Run)(const Budget&, const Tensor& like)>
Tensor budget_op(const Tensor& survival, int64_t total, const OptTensor& num_drafts) {
  const Op op("budget", survival);
  check_given(op, "survival", survival);
  check_dims(op, "survival", survival, "B, G");
  check_float32(op, "survival", survival);
  const int64_t B = survival.size(0), G = survival.size(1);
  check(B == 0 || G <= kMaxSlots / B, op, "survival must have at most 2^30 slots, got ", B, " requests of ", G);
  check(total >= 0, op, "total must be >= 0, got ", total);
  Budget a;
  a.B = B;
  a.G = B > 0 ? int(G) : 0;
  a.total = total;
  a.survival = {static_cast<const float*>(data_of(survival)), 1};
  for (int i = 0; i < 2; ++i) a.strides[i] = survival.stride(i);
  if (num_drafts) {
    check_shape(op, "num_drafts", *num_drafts, {{"B", B}});
    a.num_drafts = ints(op, "num_drafts", *num_drafts, num_drafts->stride(0));
    for (int64_t b = 0; values_at_hand(op) && b < B; ++b) {
      const int64_t n = a.num_drafts[b];
      check(n >= 0 && n <= G, op, "num_drafts must be in [0, G=", G, "], got ", n, " at index ", b);
    }
  }
  Tensor kept = result(op, {B}, a.kept);
  if (B > 0) Run(a, survival);
  return kept;
}

}  // namespace specdec

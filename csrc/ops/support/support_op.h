// SPDX-License-Identifier: Apache-2.0
// Makes support's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/views.h"
#include "support.h"

namespace specdec {

template <void (*Run)(const Support&, const Tensor& like)>
std::tuple<Tensor, Tensor, Tensor> support_op(const Tensor& logits, const Tensor& stats, const OptTensor& row,
                                              int64_t max_kept, const OptTensor& num_rows,
                                              SPECDEC_ROW_VIEWS_ARGUMENTS()) {
  const Op op("support", logits);
  check_given(op, "logits", logits, "stats", stats);
  Support a;
  a.present = present(op, "num_rows", num_rows);
  a.logits = SPECDEC_SEEN_ROWS(op, row ? Present{} : a.present);
  a.N = a.M = logits.size(0);
  const int64_t V = a.logits.V;
  check_shape(op, {"rows", "stats"}, stats, {{"N", a.N}, 4});
  a.stats = stats_pointer(op, {"rows", "stats"}, stats);
  check(max_kept >= 0 && max_kept <= 1 << 24, op, "max_kept must be in [0, 2^24], got ", max_kept);
  a.max_kept = max_kept;
  if (row) {
    check_dims(op, {"rows", "row"}, *row, "M");
    a.M = row->size(0);
    a.rows = ints_per_row(op, {"rows", "row"}, row, a.M);
  }
  a.words = (V + 31) / 32;

  Tensor ids = result(op, {a.M, max_kept}, a.ids), counts = result(op, {a.M}, a.counts);
  Tensor bits = result(op, {a.M, a.words}, a.bits);
  if (a.M > 0) Run(a, logits);
  return {ids, counts, bits};
}

template <void (*Run)(const Support&, const Tensor& like)>
using PlainSupport = WithoutViews<&support_op<Run>, kRowViewsArguments>;

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Makes row_topw's parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include <tuple>

#include "../../binding/views.h"
#include "row_topw.h"

namespace specdec {

template <void (*Run)(const RowTopW&, const Tensor& like)>
std::tuple<Tensor, Tensor> row_topw_op(const Tensor& logits, const OptTensor& stats, const Tensor& score, int64_t w,
                                       const OptTensor& num_rows, SPECDEC_ROW_VIEWS_ARGUMENTS()) {
  const Op op("row_topw", logits);
  check_given(op, "logits", logits, "score", score);
  RowTopW a;
  a.present = present(op, "num_rows", num_rows);
  a.logits = SPECDEC_SEEN_ROWS(op, a.present);
  const int64_t N = a.N = logits.size(0), V = a.logits.V;
  check_shape(op, "score", score, {{"N", N}});
  a.score = stats_pointer(op, "score", score);
  check(w >= 0 && w <= V, op, "w must be in [0, V=", V, "], got ", w);
  a.w = w;
  if (stats) {
    check_shape(op, {"rows", "stats"}, *stats, {{"N", N}, 4});
    a.stats = stats_pointer(op, {"rows", "stats"}, *stats);
  }

  Tensor scores = result(op, {N, w}, a.scores), ids = result(op, {N, w}, a.ids);
  if (N > 0 && w > 0) Run(a, logits);
  return {scores, ids};
}

template <void (*Run)(const RowTopW&, const Tensor& like)>
using PlainRowTopw = WithoutViews<&row_topw_op<Run>, kRowViewsArguments>;

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Makes row_stats' parameters from its tensors, on any device. The template parameter Run then does the work.
#pragma once

#include "../../binding/entry_ids.h"
#include "../../binding/views.h"
#include "../../binding/rows.h"
#include "row_stats.h"

namespace specdec {

template <void (*Run)(const LogitRows&, const Tensor& like)>
Tensor row_stats_op(const Tensor& logits, SPECDEC_SAMPLING_ARGUMENTS(), const OptTensor& num_rows,
                    SPECDEC_ROW_VIEWS_ARGUMENTS(), const OptTensor& ids) {
  const Op op("row_stats", logits);
  check_given(op, "logits", logits);
  LogitRows a;
  a.present = present(op, "num_rows", num_rows);
  a.logits = SPECDEC_SEEN_ROWS(op, a.present);
  take_ids(op, "rows", a.logits.ids, ids, logits, a.present);
  a.N = logits.size(0);
  a.sampling = sampling(op, "rows", SPECDEC_GIVEN_SAMPLING(), a.N, a.present);

  Tensor stats = result(op, {a.N, 4}, a.stats);
  if (a.N > 0) Run(a, logits);
  return stats;
}

template <void (*Run)(const LogitRows&, const Tensor& like)>
using PlainRowStats = WithoutViews<&row_stats_op<Run>, kRowViewsArguments + 1>;

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// From row_stats' tensors to its parameters, on any device; Run then does the work.
#pragma once

#include "../../binding/penalties.h"
#include "../../binding/rows.h"

namespace specdec {

struct LogitRows {
  int64_t N = 0;
  RowMemory logits;           // [N, V]
  Sampling sampling;          // [N]
  Present present;            // of the N rows
  Penalties penalties;        // [N]
  int64_t drafted = 0;        // tokens in the window of each row
  RowStats* stats = nullptr;  // [N]: a RowStats is the four floats, in order; 0 of a row that is absent

  SPECDEC_HD Row row(int64_t n) const { return logits.at(0, n).seen(penalties, n, drafted); }
};

template <void (*Run)(const LogitRows&, const Tensor& like)>
Tensor row_stats_op(const Tensor& logits, SPECDEC_SAMPLING_ARGUMENTS(), const OptTensor& num_rows,
                    SPECDEC_PENALTIES_ARGUMENTS(), const OptTensor& drafted) {
  const Op op("row_stats", logits);
  check_given(op, "logits", logits);
  LogitRows a;
  a.logits = row_memory(op, {"rows", "logits"}, logits);
  a.N = logits.size(0);
  a.present = present(op, "num_rows", num_rows);
  a.sampling = sampling(op, "rows", SPECDEC_GIVEN_SAMPLING(), a.N, a.present);
  a.penalties = penalties(op, SPECDEC_GIVEN_PENALTIES("rows", ), a.N, a.present);
  a.drafted = take_windows(op, "rows", a.penalties, drafted, a.N);

  Tensor stats = result(op, {a.N, 4}, a.stats);
  if (a.N > 0) Run(a, logits);
  return stats;
}

template <void (*Run)(const LogitRows&, const Tensor& like)>
using PlainRowStats = WithoutViews<&row_stats_op<Run>, kPenaltiesArguments + 1>;

}  // namespace specdec

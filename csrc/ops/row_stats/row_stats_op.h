// SPDX-License-Identifier: Apache-2.0
// From row_stats' tensors to its parameters, on any device; Run then does the work.
#pragma once

#include "../../binding/check.h"

namespace specdec {

struct LogitRows {
  int64_t N = 0;
  Rows logits;                // [N, V]
  Sampling sampling;          // [N]
  Present present;            // of the N rows
  RowStats* stats = nullptr;  // [N]: a RowStats is the four floats, in order; 0 of a row that is absent
};

template <void (*Run)(const LogitRows&, const Tensor& like)>
Tensor row_stats_op(const Tensor& logits, const OptTensor& temperature, const OptTensor& top_k, const OptTensor& top_p,
                    const OptTensor& min_p, const OptTensor& num_rows, const OptNumbers& numbers) {
  const Op op("row_stats", logits);
  check_given(op, "logits", logits);
  LogitRows a;
  check_dim(op, "logits", logits, 2);
  a.N = logits.size(0);
  a.logits = {logits.const_data_ptr(), logits.size(1), 0, logits.stride(0), check_rows(op, "logits", logits)};
  a.present = present(op, "num_rows", num_rows);
  a.sampling = sampling(op, "", temperature, top_k, top_p, min_p, {op, "numbers", numbers, 1, 4, 0}, a.N, a.present);

  Tensor stats = empty(op, {a.N, 4}, ScalarType::Float);
  a.stats = out_pointer<RowStats>(stats);
  if (a.N > 0) Run(a, logits);
  return stats;
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The rows of one side, target or draft, as laws.
#pragma once

#include "views.h"

namespace specdec {

// The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them over.
struct Side {
  Rows rows;
  Kind kind = Kind::kLogits;
  const float* stats = nullptr;  // [rows, 4]
  Sampling sampling;             // [B], where there are no stats
  int64_t per_request = 0;       // rows of a request, if dense
  int64_t extra = 0;             // rows of a request beyond its drafts, if ragged

  // Row i of request b; `start` is the request's first drafted token if ragged, else -1.
  SPECDEC_HD int64_t index(int64_t start, int64_t b, int64_t i) const {
    return start < 0 ? b * per_request + i : start + extra * b + i;
  }
  SPECDEC_HD Row at(int64_t start, int64_t b, int64_t i) const {
    return start < 0 ? rows.at(b, i) : rows.at(0, index(start, b, i));
  }

  template <class Executor>
  SPECDEC_HD Dist dist(Executor& executor, int64_t start, int64_t b, int64_t i) const {
    const Row row = at(start, b, i);
    if (kind == Kind::kProbs) return from_probs(row);
    return from_stats(row, stats ? stats_at(stats, index(start, b, i)) : executor.stats(row, sampling[b]));
  }
};

}  // namespace specdec

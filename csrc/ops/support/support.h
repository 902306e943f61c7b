// SPDX-License-Identifier: Apache-2.0
// The support: the ids that a row's distribution keeps
#pragma once

#include "../../core/arguments.h"

namespace specdec {

struct Support {
  int64_t N = 0, M = 0, max_kept = 0, words = 0;
  SeenRows logits;               // [N, V]
  const float* stats = nullptr;  // [N, 4]
  Ints rows;                     // [M]; null: all rows, in order
  Present present;               // of the M rows asked for
  int32_t* ids = nullptr;        // [M, max_kept]
  int32_t* counts = nullptr;     // [M]
  uint32_t* bits = nullptr;      // [M, words]: id v is bit v % 32 of word v / 32

  // The distribution of the i-th row asked for. It keeps the logits >= cutoff. A greedy row keeps one id. An absent or
  // invalid row keeps nothing.
  SPECDEC_HD Dist dist(int64_t i) const {
    if (!present.has(i)) return {};
    const int64_t n = rows ? rows[i] : i;
    if (n < 0 || n >= N) return {};
    const Dist p = from_stats(logits.at(0, n), stats_at(stats, n));
    return p.valid() ? p : Dist{};
  }
};

}  // namespace specdec

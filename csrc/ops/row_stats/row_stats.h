// SPDX-License-Identifier: Apache-2.0
// The rows whose stats are made.
#pragma once

#include "../../core/arguments.h"

namespace specdec {

struct LogitRows {
  int64_t N = 0;
  SeenRows logits;            // [N, V]
  Sampling sampling;          // [N]
  Present present;            // of the N rows
  RowStats* stats = nullptr;  // [N]: a RowStats is the four floats, in order; all 0 for an absent row
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Penalties on tokens that a request has used before. A Row carries a View, which names the request and how many
// drafted tokens stand before the row; cpu/penalties.cpp applies it to entries as they are read.
#pragma once

#include "ints.h"

namespace specdec {

struct Amounts {
  float repetition, frequency, presence;
  SPECDEC_HD bool any() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

struct Penalties {
  Floats repetition, frequency, presence;  // [B], where there are no numbers
  Amounts numbers{1, 0, 0};                // that serve all
  // Each list: distinct ids in ascending order with their counts in the output, then -1
  const int32_t *ids = nullptr, *counts = nullptr;  // [S, H]
  int64_t H = 0, ids_stride = 0, counts_stride = 0;
  Ints row;  // [B], the number of a request's list; else its own number
  // Drafted tokens: a request's begin at the start of its draft if ragged, else `window_stride` apart
  Ints window;                // [B, G] or [D]
  int64_t window_stride = 0;  // from request to request, if dense
  Ints starts;                // ragged: [B+1]

  SPECDEC_HD explicit operator bool() const { return ids != nullptr; }
  SPECDEC_HD Amounts amounts(int64_t b) const {
    return {repetition ? repetition[b] : numbers.repetition, frequency ? frequency[b] : numbers.frequency,
            presence ? presence[b] : numbers.presence};
  }
  SPECDEC_HD int64_t list(int64_t b) const { return row ? row[b] : b; }
  SPECDEC_HD int64_t drafted(int64_t b, int64_t i) const {
    return window.at(starts ? (starts[b] + i) * window.stride : b * window_stride + i * window.stride);
  }
};

// How a request sees a row: under its penalties, after the first `drafted` tokens of its window.
struct View {
  const Penalties* penalties = nullptr;
  int32_t request = 0, drafted = 0;
  SPECDEC_HD explicit operator bool() const { return penalties != nullptr; }
  SPECDEC_HD bool operator==(const View& other) const {
    return penalties == other.penalties && request == other.request && drafted == other.drafted;
  }
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Penalties on tokens that a request has used before
#pragma once

#include <cmath>

#include "ints.h"

namespace specdec {

struct Amounts {
  float repetition, frequency, presence;
  SPECDEC_HD bool any() const { return repetition != 1 || frequency != 0 || presence != 0; }
};

struct Penalties {
  Floats repetition, frequency, presence;  // [B]; where one is null, `numbers` serves all requests
  Amounts numbers{1, 0, 0};
  // Each list: distinct ids in ascending order with their counts in the output, then -1
  const int32_t *ids = nullptr, *counts = nullptr;  // [S, H]
  int64_t S = 0, H = 0, ids_stride = 0, counts_stride = 0;
  Ints row;  // [B], the index of each request's list; null: list b is request b's

  SPECDEC_HD explicit operator bool() const { return ids != nullptr; }
  SPECDEC_HD Amounts amounts(int64_t b) const {
    return {repetition ? repetition[b] : numbers.repetition, frequency ? frequency[b] : numbers.frequency,
            presence ? presence[b] : numbers.presence};
  }
  SPECDEC_HD int64_t list(int64_t b) const { return row ? row[b] : b; }
  // Whether a request's amounts and the index of its list are valid. The host cannot check those of GPU tensors.
  SPECDEC_HD bool fine(int64_t b) const {
    const Amounts x = amounts(b);
    const auto finite = [](float y) { return fabsf(y) < HUGE_VALF; };
    const int64_t s = list(b);
    return x.repetition > 0 && finite(x.repetition) && finite(x.frequency) && finite(x.presence) && s >= 0 && s < S;
  }
};

// List s of the penalties, with s in [0, S). Its pads, -1, count as larger than every id.
struct UsedList {
  const int32_t *ids = nullptr, *counts = nullptr;
  int64_t H = 0;

  UsedList() = default;
  SPECDEC_HD UsedList(const int32_t* ids, const int32_t* counts, int64_t H) : ids(ids), counts(counts), H(H) {}
  SPECDEC_HD UsedList(const Penalties& p, int64_t s)
      : UsedList(p.ids + s * p.ids_stride, p.counts + s * p.counts_stride, p.H) {}
  // Whether entry j is as `ids` and `counts` promise. Without branches, so that checking a list costs little beside
  // reading a row.
  SPECDEC_HD bool fine(int64_t j) const { return ascends(j) & counted(j); }
  SPECDEC_HD bool ascends(int64_t j) const {
    return (ids[j] == -1) | (j == 0 ? ids[0] >= 0 : (ids[j - 1] >= 0) & (ids[j - 1] < ids[j]));
  }
  SPECDEC_HD bool counted(int64_t j) const { return (ids[j] == -1) | (counts[j] >= 0); }
};

}  // namespace specdec

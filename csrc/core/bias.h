// SPDX-License-Identifier: Apache-2.0
// A bias: values that are added to some logits. Minus infinity forbids an id. The ids of a list may be in any order and
// may repeat.
#pragma once

#include <cmath>
#include <memory>

#include "window.h"

namespace specdec {

struct Bias : Lists {
  Ints ids;                                          // [S, I]: S lists of I entries; a negative id is padding
  const float* values = nullptr;                     // [S, I]
  int64_t n = 0, ids_stride = 0, values_stride = 0;  // n: I; strides from list to list

#ifndef SPECDEC_IN_CUDA
  struct Entry {
    int32_t id;
    float value;
  };
  std::shared_ptr<Entry[]> sorted;  // [S, I]: the lists in use, stably sorted by id. Set by binding/bias.h.
#endif

  SPECDEC_HD explicit operator bool() const { return bool(ids); }
  // Entry j of list s
  SPECDEC_HD int64_t id(int64_t s, int64_t j) const { return ids.at(s * ids_stride + j * ids.stride); }
  SPECDEC_HD float value(int64_t s, int64_t j) const { return values[s * values_stride + j]; }
};

}  // namespace specdec

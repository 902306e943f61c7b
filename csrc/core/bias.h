// SPDX-License-Identifier: Apache-2.0
// A bias on some ids of a row: minus infinity forbids an id. Lists come in any order, and an id may occur in one twice.
#pragma once

#include <cmath>
#include <memory>

#include "window.h"

namespace specdec {

struct Bias : Lists {
  Ints ids;                       // [S, I]; a negative id is padding
  const float* values = nullptr;  // [S, I]
  int64_t n = 0, ids_stride = 0, values_stride = 0;

#ifndef SPECDEC_IN_CUDA
  struct Entry {
    int32_t id;
    float value;
  };
  std::shared_ptr<Entry[]> sorted;  // [S, I]: the lists that requests have, by ascending id. Set by binding/bias.h.
#endif

  SPECDEC_HD explicit operator bool() const { return bool(ids); }
  SPECDEC_HD int64_t id(int64_t s, int64_t j) const { return ids.at(s * ids_stride + j * ids.stride); }
  SPECDEC_HD float value(int64_t s, int64_t j) const { return values[s * values_stride + j]; }
};

}  // namespace specdec

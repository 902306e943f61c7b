// SPDX-License-Identifier: Apache-2.0
// Bit masks of the ids that may be sampled: id v is allowed if bit v % 32 of word v / 32 is set.
#pragma once

#include "window.h"

namespace specdec {

struct Mask : Lists {
  const uint32_t* words = nullptr;  // [S, W]: S masks of W words; ids >= 32 W are forbidden
  int64_t W = 0, stride = 0;

  SPECDEC_HD explicit operator bool() const { return words != nullptr; }
  SPECDEC_HD const uint32_t* of(int64_t s) const { return words + s * stride; }
  SPECDEC_HD bool allows(const uint32_t* list, int64_t v) const { return v / 32 < W && list[v / 32] >> v % 32 & 1; }
};

}  // namespace specdec

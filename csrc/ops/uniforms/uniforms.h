// SPDX-License-Identifier: Apache-2.0
// n uniforms of each of B requests.
#pragma once

#include "../../core/ints.h"
#include "../../core/philox.h"

namespace specdec {

struct Uniforms {
  int64_t B = 0, n = 0;
  Ints seed, offset;  // [B]
  uint32_t domain = 0;
  double* out = nullptr;  // [B, n]

  SPECDEC_HD void fill(int64_t b, int64_t i) const { out[b * n + i] = uniform(seed[b], offset[b], domain, i); }
};

}  // namespace specdec

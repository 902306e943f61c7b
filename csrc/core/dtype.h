// SPDX-License-Identifier: Apache-2.0
// The dtypes of rows (of logits or probabilities), and the conversion of an entry to float32
#pragma once

#include <cstdint>

#include "macros.h"

namespace specdec {

enum DType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Entry i of an array of `dtype`, as a float
SPECDEC_HD float number_at(const void* data, DType dtype, int64_t i) {
  if (dtype == kFloat32) return static_cast<const float*>(data)[i];
  const uint32_t h = static_cast<const uint16_t*>(data)[i];
  union {
    uint32_t u;
    float f;
  } out;
  if (dtype == kBFloat16) {
    out.u = h << 16;
    return out.f;
  }
  // fp16: the shifted bits, read as a float, are the value times 2^-112. For inf and NaN (exponent 31), the float's
  // exponent bits are then set, and the mantissa is kept.
  out.u = (h & 0x7fffu) << 13;
  out.f *= 0x1p112f;
  if ((h & 0x7c00u) == 0x7c00u) out.u |= 0x7f800000u;
  out.u |= (h & 0x8000u) << 16;
  return out.f;
}

}  // namespace specdec

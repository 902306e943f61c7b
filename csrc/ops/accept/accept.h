// SPDX-License-Identifier: Apache-2.0
// The acceptance test of n drafts.
#pragma once

#include "../../core/accept.h"
#include "../../core/arguments.h"
#include "../../core/philox.h"

namespace specdec {

// An array of probabilities in float64, float32, float16 or bfloat16. For q it may have draft token ids instead, in
// int32 or int64: an id >= 0 stands for a one-hot draft, with probability 1, and a negative id for no draft, with
// probability 0.
struct Probs {
  enum Type : int32_t { kFloat, kDouble, kHalf, kBrain, kInt, kLong };
  const void* data = nullptr;
  Type type = kFloat;

  SPECDEC_HD double operator[](int64_t i) const {
    switch (type) {
      case kFloat: return static_cast<const float*>(data)[i];
      case kDouble: return static_cast<const double*>(data)[i];
      case kInt: return static_cast<const int32_t*>(data)[i] >= 0;
      case kLong: return static_cast<const int64_t*>(data)[i] >= 0;
      default: return number_at(data, type == kHalf ? kFloat16 : kBFloat16, i);
    }
  }
};

struct Accept {
  int64_t n = 0;
  Probs p, q, u;        // [n]
  bool* out = nullptr;  // [n]

  SPECDEC_HD void test(int64_t i) const { out[i] = accept(p[i], q[i], given_uniform(u[i])); }
};

}  // namespace specdec

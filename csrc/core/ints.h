// SPDX-License-Identifier: Apache-2.0
// Arrays of integers and floats among the arguments. Host and device share this header: it has no torch.
#pragma once

#include <cstdint>

#include "macros.h"

// Host code may read an argument's values only if they are in CPU memory. With a GPU, other reads crash; on the
// simulated device this macro makes them raise.
#if defined(SPECDEC_CUDA_ON_CPU)
#include <cuda_runtime.h>
#define SPECDEC_READS_DEVICE() cuda_on_cpu::reads_device()
#else
#define SPECDEC_READS_DEVICE()
#endif

namespace specdec {

constexpr int64_t kIdsEnd = 1 << 24;  // token ids are below: a vocabulary has at most 2^24

// int32 or int64 values, one per index; stride 0 makes one value serve every index.
struct Ints {
  const void* data = nullptr;
  int64_t stride = 0;
  bool wide = true;
  SPECDEC_HD explicit operator bool() const { return data != nullptr; }
  SPECDEC_HD int64_t operator[](int64_t i) const { return at(i * stride); }
  SPECDEC_HD int64_t at(int64_t offset) const {
    SPECDEC_READS_DEVICE();
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
};

struct Floats {
  const float* data = nullptr;
  int64_t stride = 0;
  SPECDEC_HD explicit operator bool() const { return data != nullptr; }
  SPECDEC_HD float operator[](int64_t i) const {
    SPECDEC_READS_DEVICE();
    return data[i * stride];
  }
};

// Clamps x to [0, most]. Values in GPU tensors are not checked before a launch.
SPECDEC_HD int64_t clamped(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

}  // namespace specdec

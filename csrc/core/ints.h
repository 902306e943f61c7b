// SPDX-License-Identifier: Apache-2.0
// Integers and floats of the arguments, one per index. No torch here: host and device share them.
#pragma once

#include <cstdint>

#include "macros.h"

// By the host no argument's values are read but on the CPU: the simulated device raises where a GPU's would crash.
#if defined(SPECDEC_CUDA_ON_CPU)
#include <cuda_runtime.h>
#define SPECDEC_READS_DEVICE() cuda_on_cpu::reads_device()
#else
#define SPECDEC_READS_DEVICE()
#endif

namespace specdec {

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

// Inside [0, most]: numbers on a device are not looked at before a launch.
SPECDEC_HD int64_t clamped(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

}  // namespace specdec

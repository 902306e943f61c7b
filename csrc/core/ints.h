// SPDX-License-Identifier: Apache-2.0
// Arrays of integers and floats among an op's arguments. Host and device share this header, so it does not include
// torch.
#pragma once

#include <cstdint>

#include "macros.h"

// Host code may read an argument's values only if they are in CPU memory; reading GPU memory on the host crashes. The
// simulated device (SPECDEC_CUDA_ON_CPU) has no memory of its own, so there this macro raises if host code reads.
#if defined(SPECDEC_CUDA_ON_CPU)
#include <cuda_runtime.h>
#define SPECDEC_READS_DEVICE() cuda_on_cpu::reads_device()
#else
#define SPECDEC_READS_DEVICE()
#endif

namespace specdec {

constexpr int64_t kIdsEnd = 1 << 24;  // every token id is less: a vocabulary has at most 2^24 tokens

// An array of int64 (`wide`) or int32 values. [i] steps by one stride; with stride 0, one value serves every index.
// Null data: the argument is not given.
struct Ints {
  const void* data = nullptr;
  int64_t stride = 0;
  bool wide = true;
  SPECDEC_HD explicit operator bool() const { return data != nullptr; }
  SPECDEC_HD int64_t operator[](int64_t i) const { return at(i * stride); }
  SPECDEC_HD int64_t at(int64_t offset) const {  // offset in elements
    SPECDEC_READS_DEVICE();
    return wide ? static_cast<const int64_t*>(data)[offset] : static_cast<const int32_t*>(data)[offset];
  }
};

// The same for float32 values
struct Floats {
  const float* data = nullptr;
  int64_t stride = 0;
  SPECDEC_HD explicit operator bool() const { return data != nullptr; }
  SPECDEC_HD float operator[](int64_t i) const {
    SPECDEC_READS_DEVICE();
    return data[i * stride];
  }
};

// Clamps x to [0, most]. Used for values in GPU tensors, which are not checked before a launch.
SPECDEC_HD int64_t clamped(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

}  // namespace specdec

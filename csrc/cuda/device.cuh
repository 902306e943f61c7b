// SPDX-License-Identifier: Apache-2.0
// Macros of device code, and how a warp shares a chunk of 1024 entries.
#pragma once

#include <cuda_runtime.h>

#include "../core/row.h"

#define SPECDEC_DEVICE __device__ __forceinline__
// For functions that are not inlined: they rarely run, or their caller has no registers to spare.
#define SPECDEC_APART __device__ __attribute__((noinline)) inline
#define SPECDEC_HD_APART __host__ SPECDEC_APART

namespace specdec {

constexpr int kLanes = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

SPECDEC_DEVICE float half_to_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(uint16_t(bits)));
  return f;
#else
  const uint16_t h = uint16_t(bits);
  return number_at(&h, kFloat16, 0);
#endif
}

// Hides from the compiler where a pointer or an index comes from. Otherwise the compiler would keep an address for
// every entry of a chunk across loop iterations, and spill registers.
template <class T>
SPECDEC_DEVICE const T* opaque(const T* p) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+l"(p));
#endif
  return p;
}
SPECDEC_DEVICE int opaque(int i) {
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(i));
#endif
  return i;
}

// After this call the compiler reads values from memory again. It does not keep those that it read before in registers
// over a loop.
SPECDEC_DEVICE void forget() {
#if defined(__CUDA_ARCH__)
  asm volatile("" ::: "memory");
#endif
}

// A group is kGroup adjacent entries, which one lane holds. Each lane has kGroups groups of a chunk, and group_begin(j)
// is where its group j begins in the chunk. This depends on neither the dtype nor the alignment of the row, so every
// sum has the same order, and the same bits.
constexpr int kGroup = 8, kGroups = kChunk / kLanes / kGroup;
SPECDEC_DEVICE int group_begin(int j) { return (j * kLanes + int(threadIdx.x) % kLanes) * kGroup; }
// A lane's entries of a chunk are numbered r = 0 .. 31, group after group. Entry r lies step_of(r) after entry 0.
SPECDEC_DEVICE constexpr int step_of(int r) { return r / kGroup * (kLanes * kGroup) + r % kGroup; }

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Words of the device, and how a warp shares a chunk of 1024 entries.
#pragma once

#include <cuda_runtime.h>

#include "../core/row.h"

#define SPECDEC_DEVICE __device__ __forceinline__
// Called: seldom run, or where the caller has no registers to spare
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

// Hides where a pointer or an index comes from: the compiler would otherwise keep an address for every entry of a chunk
// from turn to turn, and spill.
template <class T>
SPECDEC_HD const T* opaque(const T* p) {
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

// What was read from memory before is read again behind this, and not kept in registers over a loop.
SPECDEC_DEVICE void forget() {
#if defined(__CUDA_ARCH__)
  asm volatile("" ::: "memory");
#endif
}

// Group j of lane l begins here in its chunk, whatever the dtype and the alignment of the row: the order of every sum,
// and so its bits, are the same for all.
constexpr int kGroup = 8, kGroups = kChunk / kLanes / kGroup;
SPECDEC_DEVICE int group_begin(int j) { return (j * kLanes + int(threadIdx.x) % kLanes) * kGroup; }
// Number r of a lane's entries lies so far behind its first one.
SPECDEC_DEVICE constexpr int step_of(int r) { return r / kGroup * (kLanes * kGroup) + r % kGroup; }

}  // namespace specdec

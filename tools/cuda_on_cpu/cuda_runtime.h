// SPDX-License-Identifier: Apache-2.0
// The part of CUDA that our kernels use, on fibers. g++ finds this file where nvcc finds the toolkit's.
#pragma once

#include <math.h>

#include <bit>
#include <type_traits>

#include "grid.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#if defined(SPECDEC_CHECKED)
#define __forceinline__ inline  // stays a call, so that two calls of a helper with a barrier are told apart
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
// Thread-local storage of the launching OS thread. It has no constructors, as in CUDA, and is between two markers
// (shared_begin.cpp).
#define __shared__ static __thread
// For functions that note their accesses themselves, or access only the harness's memory. Otherwise the compiler would
// report plain accesses.
#define SPECDEC_NOTED __attribute__((no_sanitize("thread", "undefined")))

inline constexpr const cuda_on_cpu::Index& threadIdx = cuda_on_cpu::here.thread;
inline constexpr const cuda_on_cpu::Index& blockIdx = cuda_on_cpu::here.block;
inline constexpr const cuda_on_cpu::Index& blockDim = cuda_on_cpu::here.threads;
inline constexpr const cuda_on_cpu::Index& gridDim = cuda_on_cpu::here.blocks;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads(cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::meet_block("__syncthreads", false, site);
}
inline int __syncthreads_or(int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::meet_block("__syncthreads_or", p, site).yes > 0;
}
inline int __syncthreads_and(int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const cuda_on_cpu::Votes votes = cuda_on_cpu::meet_block("__syncthreads_and", p, site);
  return votes.yes == votes.all;
}
inline int __syncthreads_count(int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::meet_block("__syncthreads_count", p, site).yes;
}
inline void __syncwarp(unsigned mask = ~0u, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  cuda_on_cpu::meet_warp("__syncwarp", mask, 0, site);
}

namespace cuda_on_cpu {

template <class T>
SPECDEC_NOTED T exchange(const char* op, unsigned mask, T value, unsigned from, const Site& site) {
  static_assert(std::is_arithmetic_v<T> && sizeof(T) >= 4 && sizeof(T) <= 8);
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = meet_warp(op, mask, bits, site)[from];
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline SPECDEC_NOTED unsigned ballot(const char* op, unsigned mask, bool vote, const Site& site) {
  const uint64_t* votes = meet_warp(op, mask, vote, site);
  unsigned bits = 0;
  for (unsigned i = 0; i < 32; ++i) bits |= unsigned(votes[i]) << i;
  return bits;
}

template <class T>
SPECDEC_NOTED T load(const T* p, const char* op, Access access) {
  check_aligned(p, sizeof(T), op);
  note(p, sizeof(T), access);
  return *p;
}

template <class T, class Change>
SPECDEC_NOTED T update(T* p, const char* op, Change change) {
  check_aligned(p, sizeof(T), op);
  note(p, sizeof(T), Access::atomic);
  const T old = *p;
  *p = change(old);
  return old;
}

}  // namespace cuda_on_cpu

// A lane whose source is outside its segment of `width` lanes keeps its own value; __shfl_sync wraps around instead.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::lane(), segment = lane & ~unsigned(width - 1);
  return cuda_on_cpu::exchange("__shfl_sync", mask, value, segment | (unsigned(source) & unsigned(width - 1)), site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::lane(), segment = lane & ~unsigned(width - 1);
  return cuda_on_cpu::exchange("__shfl_up_sync", mask, value, lane - segment >= delta ? lane - delta : lane, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::lane(), segment = lane & ~unsigned(width - 1);
  return cuda_on_cpu::exchange("__shfl_down_sync", mask, value,
                               lane - segment + delta < unsigned(width) ? lane + delta : lane, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  const unsigned lane = cuda_on_cpu::lane(), source = lane ^ unsigned(bits);
  return cuda_on_cpu::exchange("__shfl_xor_sync", mask, value,
                               source < (lane & ~unsigned(width - 1)) + width ? source : lane, site);
}
inline unsigned __ballot_sync(unsigned mask, int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::ballot("__ballot_sync", mask, p, site);
}
inline int __any_sync(unsigned mask, int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::ballot("__any_sync", mask, p, site) != 0;
}
inline int __all_sync(unsigned mask, int p, cuda_on_cpu::Site site = cuda_on_cpu::Site::current()) {
  return cuda_on_cpu::ballot("__all_sync", mask, p, site) == ~0u;
}

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  using U = std::make_unsigned_t<T>;  // wraps, as on the device
  return cuda_on_cpu::update(p, "atomicAdd", [v](T old) { return T(U(old) + U(v)); });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return cuda_on_cpu::update(p, "atomicMax", [v](T old) { return old < v ? v : old; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return cuda_on_cpu::update(p, "atomicMin", [v](T old) { return v < old ? v : old; });
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> v) {
  return cuda_on_cpu::update(p, "atomicOr", [v](T old) { return T(old | v); });
}

inline void __threadfence() { cuda_on_cpu::fence(); }

template <class T>
T __ldg(const T* p) {
  return cuda_on_cpu::load(p, "__ldg", cuda_on_cpu::Access::read_only);
}
template <class T>
T __ldcg(const T* p) {
  return cuda_on_cpu::load(p, "__ldcg", cuda_on_cpu::Access::read_past_l1);
}
template <class T>
SPECDEC_NOTED void __stcg(T* p, std::type_identity_t<T> value) {
  cuda_on_cpu::check_aligned(p, sizeof(T), "__stcg");
  cuda_on_cpu::note(p, sizeof(T), cuda_on_cpu::Access::write);
  *p = value;
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __expf(float x) { return exp2f(x * 1.4426950408889634f); }

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = void*;
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
  std::memset(p, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = cuda_on_cpu::device.multiprocessors; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = cuda_on_cpu::device.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = cuda_on_cpu::device.minor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = cuda_on_cpu::device.shared; return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

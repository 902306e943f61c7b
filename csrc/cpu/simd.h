// SPDX-License-Identifier: Apache-2.0
// Vectors of floats for the instruction set that a file is compiled for, with exponential, logarithm and sums. Nothing
// here has external linkage; simd_kernels.cpp says why.
#pragma once

#include "simd_kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace specdec {
namespace {

#if defined(__AVX512F__)
constexpr int W = 16;  // lanes of a vector
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
constexpr int U = kPad / W;  // vectors in a group of kPad lanes

// Vectors of W lanes; F_u and H_u need not be aligned.
using F = float __attribute__((vector_size(W * 4)));
using I = int32_t __attribute__((vector_size(W * 4)));
using Bits = uint32_t __attribute__((vector_size(W * 4)));
using H = uint16_t __attribute__((vector_size(W * 2)));
using F_u = float __attribute__((vector_size(W * 4), aligned(4)));
using H_u = uint16_t __attribute__((vector_size(W * 2), aligned(2)));

inline F load_f(const float* x) { return *reinterpret_cast<const F_u*>(x); }
inline void store_f(float* x, F v) { *reinterpret_cast<F_u*>(x) = v; }
inline F splat(float x) { return F{} + x; }
inline F select(I mask, F a, F b) { return mask ? a : b; }

// A word whose bit j is lane j of a comparison
inline uint32_t bits_of(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__)
  return uint32_t(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int j = 0; j < W; ++j) bits |= uint32_t(mask[j] & 1) << j;
  return bits;
#endif
}

// A bfloat16 is the upper half of a float32, so one shuffle that zeroes the lower halves converts W of them.
inline F from_bf16(const uint16_t* x) {
#if defined(__AVX512F__)
  const __m512i to = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,  //
                                      7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return (F)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, to, _mm512_castsi256_si512(h));
#elif defined(__AVX2__)
  const __m256i to = _mm256_set_epi8(15, 14, -1, -1, 13, 12, -1, -1, 11, 10, -1, -1, 9, 8, -1, -1,  //
                                     7, 6, -1, -1, 5, 4, -1, -1, 3, 2, -1, -1, 1, 0, -1, -1);
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return (F)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(h), to);
#else
  const I wide = __builtin_convertvector(*reinterpret_cast<const H_u*>(x), I);
  return (F)(wide << 16);
#endif
}

inline F from_fp16(const uint16_t* x) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
  const I h = __builtin_convertvector(*reinterpret_cast<const H_u*>(x), I);
  const I bits = (I)((F)((h & 0x7fff) << 13) * 0x1p112f) | (((h & 0x7c00) == 0x7c00) & 0x7f800000);
  return (F)(bits | (h & 0x8000) << 16);
#endif
}

// The larger of x and m; m if x is NaN
inline F max_f(F x, F m) {
#if defined(__AVX512F__)
  return (F)_mm512_max_ps((__m512)x, (__m512)m);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)x, (__m256)m);
#else
  return select(x > m, x, m);
#endif
}

// The smaller of x and m; m if x is NaN
inline F min_f(F x, F m) {
#if defined(__AVX512F__)
  return (F)_mm512_min_ps((__m512)x, (__m512)m);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)x, (__m256)m);
#else
  return select(x < m, x, m);
#endif
}

// A chunk's entries as vectors of floats; z[i] has the entries i ... i + W - 1.
template <class T, F (*kLoad)(const T*), bool kNext = true>
struct VectorsOf {
  const T* x;
  F operator[](int i) const { return kLoad(x + i); }
  const T* next;
  // Prefetches the row's next chunk while this one is computed. kNext: there is a next chunk to prefetch.
  void prefetch(int i) const {
    if (kNext) __builtin_prefetch(next + i);
  }
};

template <class Run>
inline auto with_vectors(const Entries& z, Run run) {
  const uint16_t *h = static_cast<const uint16_t*>(z.data), *next = static_cast<const uint16_t*>(z.next);
  if (z.dtype == kBFloat16) return run(VectorsOf<uint16_t, from_bf16>{h, next});
  if (z.dtype == kFloat16) return run(VectorsOf<uint16_t, from_fp16>{h, next});
  const float* const x = static_cast<const float*>(z.data);
  if (!next) return run(VectorsOf<float, load_f, false>{x, nullptr});
  return run(VectorsOf<float, load_f>{x, static_cast<const float*>(z.next)});
}

// 2^f for |f| <= 1/2, with a relative error below 2.5e-7
inline F exp2_poly(F f) {
  F r = splat(1.3276472454890609e-03f);
  r = r * f + 9.675540961325169e-03f;
  r = r * f + 5.550713092088699e-02f;
  r = r * f + 2.4022120237350464e-01f;
  r = r * f + 6.931469440460205e-01f;
  return r * f + 1.0f;
}

// 2^y; NaN stays NaN. If y may be far below kLeastExponent, callers must drop the result (Exponent::least). kUpTo0: no
// y is above 0.
template <bool kUpTo0 = false>
inline F exp2_f(F y) {
#if defined(__AVX512F__)
  const __m512 n = _mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return (F)_mm512_scalef_ps((__m512)exp2_poly(y - (F)n), n);
#else
  y = max_f(splat(-127.0f), y);  // 2^-127 becomes 0
  if constexpr (!kUpTo0) y = min_f(splat(127.0f), y);
  const F shifted = y + 0x1.8p23f;  // the low mantissa bits now hold round(y)
  const F power = (F)(((Bits)shifted << 23) + 0x3f800000u);
  return exp2_poly(y - (shifted - 0x1.8p23f)) * power;
#endif
}

constexpr float kLog2e = 1.44269504088896341f;

// (z - max) * scale * log2(e) for the logits z of a row. z and max are halved before they are subtracted, since z - max
// may overflow.
struct Exponent {
  float half, twice;
  float least;  // logits below it have weight 0: they are not kept, or their exponent is below kLeastExponent
  Exponent(float max, float scale, float cutoff) : half(0.5f * max), twice(2 * scale * kLog2e), least(cutoff) {
    const float z = max + kLeastExponent / (scale * kLog2e);
    if (z > cutoff) least = z;
  }
  F operator()(F z) const { return (z * 0.5f - half) * twice; }
};

// A sum. Four accumulators hide the latency of the additions. The accumulators and their lanes are combined in one
// fixed order.
constexpr int A = 4;
struct Sum {
  F lane[A] = {};
  float total() const {
    const F s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    float t = 0;
    for (int i = 0; i < W; ++i) t += s[i];
    return t;
  }
};

// Calls step(index of the first entry, accumulator) for every vector of n entries. The accumulators take turns.
template <class Step>
__attribute__((always_inline)) inline void for_vectors(int n, Step step) {
  const int vectors = padded(n) / W;
  int i = 0;
  for (; i + A <= vectors; i += A)
    for (int a = 0; a < A; ++a) step((i + a) * W, a);
  for (int a = 0; i < vectors; ++i, ++a) step(i * W, a);
}

template <class Step>
__attribute__((always_inline)) inline float sum_over(int n, Step step) {
  Sum s;
  for_vectors(n, [&](int i, int a) __attribute__((always_inline)) { s.lane[a] += step(i); });
  return s.total();
}

// ln x of a normal number, with a relative error below 2e-7
inline F log_f(F x) {
  I exponent = ((I)x >> 23) - 127;
  F m = (F)(((I)x & 0x7fffff) | 0x3f800000);
  const I high = m > 1.41421356f;
  m = select(high, m * 0.5f, m);
  exponent -= high;  // true is -1
  const F s = (m - 1.0f) / (m + 1.0f), t = s * s;
  const F series = ((t * 0.11111111f + 0.14285714f) * t + 0.2f) * t + 0.33333333f;
  return __builtin_convertvector(exponent, F) * 0.69314718f + (s + s * t * series) * 2.0f;
}

using D = double __attribute__((vector_size(W * 4)));

// low(x), high(x): the lower and the upper half of the lanes of x, in float64
inline D low(F x) {
#if defined(__AVX512F__)
  return (D)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x));
#elif defined(__AVX2__)
  return (D)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x));
#elif defined(__SSE2__)
  return (D)_mm_cvtps_pd((__m128)x);
#else
  return D{x[0], x[1]};
#endif
}
inline D high(F x) {
#if defined(__AVX512F__)
  return (D)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1));
#elif defined(__AVX2__)
  return (D)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
#elif defined(__SSE2__)
  return (D)_mm_cvtps_pd(_mm_movehl_ps((__m128)x, (__m128)x));
#else
  return D{x[2], x[3]};
#endif
}

inline double total(D x) {
  double t = 0;
  for (int i = 0; i < W / 2; ++i) t += x[i];
  return t;
}

}  // namespace
}  // namespace specdec

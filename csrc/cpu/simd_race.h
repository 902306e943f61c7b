// SPDX-License-Identifier: Apache-2.0
// The SIMD kernel of the race (core/race.h). Few entries can beat the best key so far. So each entry is first tested
// with the upper word of its uniform, without a logarithm.
#pragma once

#include "../core/philox.h"
#include "simd.h"

namespace specdec {
namespace {

using Q = uint64_t __attribute__((vector_size(W * 4)));

// The products of the lower halves of 64-bit lanes and m
inline Q product(Q x, uint32_t m) {
  const Q y = Q{} + m;
#if defined(__AVX512F__)
  return (Q)_mm512_mul_epu32((__m512i)x, (__m512i)y);
#elif defined(__AVX2__)
  return (Q)_mm256_mul_epu32((__m256i)x, (__m256i)y);
#elif defined(__SSE2__)
  return (Q)_mm_mul_epu32((__m128i)x, (__m128i)y);
#else
  return (x & 0xffffffffu) * y;
#endif
}

// The upper 32 bits of the uniforms (core/philox.h) for the noise of the ids id ... id + W - 1. `id` must be even,
// since one Philox block has the uniforms of two ids. Each 64-bit lane computes one block in its lower half. The upper
// halves hold arbitrary bits until the end.
inline Bits upper_words(uint64_t seed, uint64_t position, uint64_t id) {
  Q w0, w1 = Q{} + position, w2 = Q{} + (position >> 32), w3 = Q{} + uint64_t(kDomainNoise);
  for (int j = 0; j < W / 2; ++j) w0[j] = id / 2 + j;
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < kRounds; ++round) {
    const Q a = product(w0, kFactor0), b = product(w2, kFactor1);
    w0 = (b >> 32) ^ w1 ^ key0, w1 = b;
    w2 = (a >> 32) ^ w3 ^ key1, w3 = a;
    key0 += kStep0, key1 += kStep1;
  }
  return (Bits)((w0 & 0xffffffffu) | w2 << 32);
}

// The least keys between which float32 holds all weights that the test needs: 2^-126 e^-least is below 2^-31, and
// 2^127 e^-least above 1.
constexpr double kSmallHeld = -65, kLargeHeld = 88;

// Writes the indices of the entries that may have a key of at least race.least, and returns how many. weight(i): the
// exp of race_weight() of the W entries from i on.
template <class Weight>
inline int racers_by(int n, const Racing& race, Weight weight, int* out) {
  // The noise is -ln E with E = -ln u >= 1 - u. A key of at least `least` needs E <= weight(i) e^-least, so the test is
  // 1 - u <= weight(i) e^-least, in units of 2^-31. The right side is raised by the factor 1 + 2^-10, far more than its
  // relative error. Weights below 2^-126 may be 0 here, and those above 2^127 that. If such an entry can decide the
  // race, every entry passes: weight(i) inf is inf or NaN.
  const bool held = race.least > kSmallHeld && race.least < kLargeHeld;
  const float most = held ? float(__builtin_exp(-race.least) * (0x1p31 * (1 + 0x1p-10))) : HUGE_VALF;
  int count = 0;
  for (int i = 0; i < n; i += W) {
    const Bits rest = ~upper_words(uint64_t(race.seed), uint64_t(race.position), uint64_t(race.first + i));
    const F above = __builtin_convertvector((I)(rest >> 1), F);
    uint32_t some = bits_of(~(above > weight(i) * most));  // also true where 0 * inf is NaN
    if (n - i < W) some &= (1u << (n - i)) - 1;
    for (; some; some &= some - 1) out[count++] = i + __builtin_ctz(some);
  }
  return count;
}

int racers(const Entries& entries, int n, const RowStats* stats, const Racing& race, int* out) {
  return with_vectors(entries, [&](auto z) {
    if (!stats) return racers_by(n, race, [=](int i) { return z[i]; }, out);
    const Exponent exponent(stats->max, stats->scale, stats->cutoff);
    return racers_by(
        n, race,
        [=](int i) {
          z.prefetch(i);
          const F x = z[i];
          return select(x >= exponent.least, exp2_f(exponent(x)), F{});
        },
        out);
  });
}

}  // namespace
}  // namespace specdec

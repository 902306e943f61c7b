// SPDX-License-Identifier: Apache-2.0
// SIMD kernels for maxima and filters: the maximum of a chunk of logits or probabilities; counts, positions and weights
// of the entries that reach a threshold; and the sums for top-n-sigma (Spread)
#pragma once

#include "simd.h"

namespace specdec {
namespace {

ChunkMax chunk_max(const Entries& entries, int n, float* lanes) {
  F max[U];
  I fine[U];
  for (int u = 0; u < U; ++u) max[u] = splat(-HUGE_VALF), fine[u] = I{} - 1;
  with_vectors(entries, [&](auto z) {
    for (int i = 0; i < n; i += kPad)
      for (int u = 0; u < U; ++u) {
        const F x = z[i + u * W];
        max[u] = max_f(x, max[u]);
        fine[u] &= x < HUGE_VALF;
      }
  });
  if (lanes)
    for (int u = 0; u < U; ++u) store_f(lanes + u * W, max[u]);
  ChunkMax out{-HUGE_VALF, false};
  for (int u = 0; u < U; ++u)
    for (int i = 0; i < W; ++i) {
      if (max[u][i] > out.max) out.max = max[u][i];
      out.bad |= !fine[u][i];
    }
  return out;
}

int above(const float* z, int n, float least) {
  I count{};
  for (int i = 0; i < padded(n); i += W) count -= load_f(z + i) > least;
  int total = 0;
  for (int j = 0; j < W; ++j) total += count[j];
  return total;
}

int reach(const float* z, int n, float least, uint32_t* bits) {
  int count = 0;
  for (int begin = 0; begin < n; begin += 32) {
    const int rest = padded(n) - begin;
    uint32_t word = 0;
    for (int i = 0; i < 32 && i < rest; i += W) word |= bits_of(load_f(z + begin + i) >= least) << i;
    bits[begin / 32] = word;
    count += __builtin_popcount(word);
  }
  return count;
}

int find(const float* z, int n, float lo, float below, int* out) {
  int count = 0;
  for (int i = 0; i < n; i += W) {
    const F x = load_f(z + i);
    for (uint32_t bits = bits_of((x >= lo) & (x < below)); bits; bits &= bits - 1)
      out[count++] = i + __builtin_ctz(bits);
  }
  return count;
}

Spread spread(const Entries& entries, int n, float max) {
  D sum[2 * U] = {}, squares[2 * U] = {};
  int count = 0;
  with_vectors(entries, [&](auto z) {
    for (int i = 0; i < n; i += kPad)
      for (int u = 0; u < U; ++u) {
        z.prefetch(i + u * W);
        const F x = z[i + u * W];
        const I finite = x > -HUGE_VALF;  // false in the padding after the row
        count += __builtin_popcount(bits_of(finite));
        const F y = select(finite, x, splat(max));  // the distance of `max` is 0, which adds nothing
        const D distances[] = {double(max) - low(y), double(max) - high(y)};
        for (int h = 0; h < 2; ++h) {
          sum[2 * u + h] += distances[h];
          squares[2 * u + h] += distances[h] * distances[h];
        }
      }
  });
  for (int u = 1; u < 2 * U; ++u) sum[0] += sum[u], squares[0] += squares[u];
  return {total(sum[0]), total(squares[0]), count};
}

inline F add_where(I mask, F x, F sum) {
#if defined(__AVX512F__)
  return (F)_mm512_mask_add_ps((__m512)sum, bits_of(mask), (__m512)sum, (__m512)x);
#else
  return sum + select(mask, x, F{});
#endif
}

void kept_sums(const float* z, int n, float max, float scale, const float* t, float* out) {
  const Exponent exponent(max, scale, -FLT_MAX);
  F at[kThresholds], sums[kThresholds] = {};
  for (int m = 0; m < kThresholds; ++m) at[m] = splat(t[m]);
  for (int i = 0; i < n; i += W) {
    __builtin_prefetch(z + i + kChunk);
    const F x = load_f(z + i), e = select(x < exponent.least, F{}, exp2_f(exponent(x)));
#pragma GCC unroll 8
    for (int m = 0; m < kThresholds; ++m) sums[m] = add_where(x >= at[m], e, sums[m]);
  }
  for (int m = 0; m < kThresholds; ++m) {
    out[m] = 0;
    for (int j = 0; j < W; ++j) out[m] += sums[m][j];
  }
}

}  // namespace
}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The weight of one entry, from x of the target and y of the draft. T is double for a single entry, float in the sums
// of a GPU, and a vector of floats in those of a CPU.
#pragma once

#include <cmath>

#include "macros.h"

namespace specdec {

// Comparisons of T. smaller() and larger() may lose a NaN; positive() and nan_of() keep it. The sums of a CPU have
// their own Compare in simd_weights.h, which no NaN reaches.
template <class T>
struct Compare {
  SPECDEC_HD static T smaller(T x, T y) { return x < y ? x : y; }
  SPECDEC_HD static T larger(T x, T y) { return x < y ? y : x; }
  SPECDEC_HD static T positive(T x) { return x < 0 ? 0 : x; }
  SPECDEC_HD static T nan_of(T, T w) { return w; }
};

template <>
struct Compare<float> {
  SPECDEC_HD static float smaller(float x, float y) { return fminf(x, y); }
  SPECDEC_HD static float larger(float x, float y) { return fmaxf(x, y); }
  SPECDEC_HD static float positive(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));
    return x;
#else
    return x > 0 || x != x ? x : 0.0f;
#endif
  }
  SPECDEC_HD static float nan_of(float x, float w) { return x != x ? x : w; }
};

// (x - s min(y, cap x))+: x after one Subtraction
template <class T>
SPECDEC_HD T subtracted_weight(T x, T y, float s, float cap) {
  return Compare<T>::positive(x - Compare<T>::smaller(y, x * cap) * s);
}

// (of_p x + of_q y)+: a mixture after q is subtracted. y has one factor, so nothing cancels if pi is q.
template <class T, class Factor>
SPECDEC_HD T mixed_weight(T x, T y, float of_p, Factor of_q) {
  return Compare<T>::positive(x * of_p + of_q * y);
}

// (m max(min(y, of_q x), of_p x) - minus y)+: a capped mixture after q is subtracted
template <class T>
SPECDEC_HD T capped_weight(T x, T y, float of_q, float of_p, float m, float minus) {
  using C = Compare<T>;
  return C::nan_of(x, C::positive(C::larger(C::smaller(y, x * of_q), x * of_p) * m - y * minus));
}

}  // namespace specdec

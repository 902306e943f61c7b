// SPDX-License-Identifier: Apache-2.0
// The weight of one id in a residual or a mixture. It is computed from x, the id's target probability or its weight so
// far, and y, its draft probability. T is double for a single id, float in the sums of a GPU, and a vector of floats in
// those of a CPU.
#pragma once

#include <cmath>

#include "macros.h"

namespace specdec {

// Comparisons of T. positive() keeps a NaN; smaller() and larger() may drop it. nan_of(x, w) returns w, or NaN if x is
// NaN. In this generic Compare it only returns w, since its comparisons keep the NaN of x in capped_weight(). fminf and
// fmaxf drop it. The sums of a CPU have another Compare, in simd_weights.h, which NaN never reaches.
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

// (x - s min(y, cap x))+: the weight x after one Subtraction (residual.h)
template <class T>
SPECDEC_HD T subtracted_weight(T x, T y, float s, float cap) {
  return Compare<T>::positive(x - Compare<T>::smaller(y, x * cap) * s);
}

// (of_p x + of_q y)+: a Mixture (mixture.h) after q is subtracted. of_q is already the difference of q's factor in the
// mixture and the subtracted factor, so nothing cancels if pi is q.
template <class T, class Factor>
SPECDEC_HD T mixed_weight(T x, T y, float of_p, Factor of_q) {
  return Compare<T>::positive(x * of_p + of_q * y);
}

// (m max(min(y, of_q x), of_p x) - minus y)+: a capped Mixture after q is subtracted
template <class T>
SPECDEC_HD T capped_weight(T x, T y, float of_q, float of_p, float m, float minus) {
  using C = Compare<T>;
  return C::nan_of(x, C::positive(C::larger(C::smaller(y, x * of_q), x * of_p) * m - y * minus));
}

}  // namespace specdec

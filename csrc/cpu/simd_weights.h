// SPDX-License-Identifier: Apache-2.0
// The SIMD kernels for weights: those of a draft row, those after a subtraction, those of a mixture. Only functions
// with F in their type have external linkage. F is a different type in each instruction set, so the linker cannot
// confuse their copies (simd_kernels.cpp).
#pragma once

#include "../core/weight.h"
#include "simd.h"

namespace specdec {

template <>
struct Compare<F> {
  static F smaller(F x, F y) { return min_f(x, y); }
  static F larger(F x, F y) { return max_f(x, y); }
  static F positive(F x) { return max_f(x, F{}); }
  static F nan_of(F, F w) { return w; }
};

namespace {

inline F draft_f(F q) { return min_f(max_f(select(q <= 1.001f, q, F{}), F{}), splat(1.0f)); }

float draft(const float* q, int n, float* out) {
  return sum_over(n, [=](int i) {
    const F y = draft_f(load_f(q + i));
    store_f(out + i, y);
    return y;
  });
}

float subtract(float* w, const float* q, int n, float m, float s, float cap) {
  return sum_over(n, [=](int i) {
    const F r = subtracted_weight(load_f(w + i) * m, draft_f(load_f(q + i)), s, cap);
    store_f(w + i, r);
    return r;
  });
}

float scale(float* w, int n, float m) {
  return sum_over(n, [=](int i) {
    const F x = load_f(w + i) * m;
    store_f(w + i, x);
    return x;
  });
}

float mix(float* w, const float* q, const float* score_row, int n, float threshold, float of_p, float kept,
          float removed) {
  return sum_over(n, [=](int i) {
    const F of_q = select(load_f(score_row + i) >= threshold, splat(kept), splat(removed));
    const F r = mixed_weight(load_f(w + i), draft_f(load_f(q + i)), of_p, of_q);
    store_f(w + i, r);
    return r;
  });
}

float cap(float* w, const float* q, int n, float of_q, float of_p, float m, float minus) {
  return sum_over(n, [=](int i) {
    const F r = capped_weight(load_f(w + i), draft_f(load_f(q + i)), of_q, of_p, m, minus);
    store_f(w + i, r);
    return r;
  });
}

float deferred(const float* q, const float* score_row, int n, float threshold) {
  return sum_over(n, [=](int i) { return select(load_f(score_row + i) >= threshold, F{}, draft_f(load_f(q + i))); });
}

}  // namespace
}  // namespace specdec

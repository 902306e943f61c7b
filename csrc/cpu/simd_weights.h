// SPDX-License-Identifier: Apache-2.0
// The SIMD steps that weigh: what a draft, a subtraction and a mixture make of the entries of a chunk. Nothing here has
// external linkage: see simd_kernels.cpp.
#pragma once

#include "simd.h"

namespace specdec {
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
    const F x = load_f(w + i) * m;
    const F r = max_f(x - min_f(draft_f(load_f(q + i)), x * cap) * s, F{});
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
    const F r = max_f(load_f(w + i) * of_p + of_q * draft_f(load_f(q + i)), F{});
    store_f(w + i, r);
    return r;
  });
}

float cap(float* w, const float* q, int n, float of_q, float of_p, float m, float minus) {
  return sum_over(n, [=](int i) {
    const F x = load_f(w + i), y = draft_f(load_f(q + i));
    const F r = max_f(max_f(min_f(y, x * of_q), x * of_p) * m - y * minus, F{});
    store_f(w + i, r);
    return r;
  });
}

float deferred(const float* q, const float* score_row, int n, float threshold) {
  return sum_over(n, [=](int i) { return select(load_f(score_row + i) >= threshold, F{}, draft_f(load_f(q + i))); });
}

}  // namespace
}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The sampling parameters of one row, and which logits they keep. Each filter keeps the logits z >= cutoff, so it never
// separates equal logits.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "macros.h"

namespace specdec {

// Sums over the finite entries of a row or of a part of it. d is an entry's distance to the row's maximum, in float64:
// the difference of two floats may overflow.
struct Spread {
  double sum = 0, squares = 0;  // of d and of d * d
  int32_t count = 0;

  SPECDEC_HD void add(float z, float max) {
    if (z == -HUGE_VALF) return;
    const double d = double(max) - z;
    sum += d, squares += d * d, ++count;
  }
  SPECDEC_HD void add(const Spread& x) { sum += x.sum, squares += x.squares, count += x.count; }
  // The standard deviation with the divisor `count`, not count - 1. Since d is 0 for the maximum, the square of the
  // mean is at most (1 - 1/count) times the mean of the squares, so their difference is precise enough.
  SPECDEC_HD double sigma() const {
    const double mean = sum / count, variance = squares / count - mean * mean;
    return variance > 0 ? sqrt(variance) : 0;
  }
};

// By default the temperature is 1 and every filter is off.
struct Filters {
  float temperature = 1.0f;
  int64_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float top_n_sigma = 0.0f;

  // A subnormal temperature counts as 0, since its inverse may overflow.
  SPECDEC_HD bool greedy() const { return temperature >= 0 && temperature < FLT_MIN; }
  SPECDEC_HD bool top_k_on(int64_t V) const { return top_k > 0 && top_k < V; }
  SPECDEC_HD bool any(int64_t V) const { return (by_value() || top_p < 1 || top_k_on(V)) && !greedy(); }
  SPECDEC_HD bool filter() const { return by_value() || top_p < 1 || top_k > 0; }  // whether any is on, for a large V
  // Whether min-p or top-n-sigma is on. Their cutoffs follow from the row's maximum and, for top-n-sigma, its Spread.
  // They are applied before top-k and top-p.
  SPECDEC_HD bool by_value() const { return min_p > 0 || top_n_sigma > 0; }
  SPECDEC_HD bool temperature_in_range() const { return temperature >= 0 && temperature <= FLT_MAX; }
  SPECDEC_HD bool top_p_in_range() const { return top_p > 0 && top_p <= 1; }
  SPECDEC_HD bool min_p_in_range() const { return min_p >= 0 && min_p <= 1; }
  SPECDEC_HD bool top_n_sigma_in_range() const { return top_n_sigma >= 0 && top_n_sigma <= FLT_MAX; }
  // Parameters in device memory cannot raise an error, so values out of range make the row invalid.
  SPECDEC_HD bool sane() const {
    return temperature_in_range() && top_p_in_range() && min_p_in_range() && top_n_sigma_in_range();
  }

  // Infinity for a greedy row. Otherwise 1 / T, which is at most 2^126, so that 2 scale log2(e) is finite.
  SPECDEC_HD float scale() const { return greedy() ? HUGE_VALF : 1.0f / temperature; }
  SPECDEC_HD float min_p_cutoff(float max) const {
    return min_p > 0 ? clamped(max + temperature * log(double(min_p))) : -FLT_MAX;
  }
  // top-n-sigma's cutoff. `spread` must be the row's.
  SPECDEC_HD float top_n_sigma_cutoff(float max, const Spread& spread) const {
    return clamped(max - top_n_sigma * spread.sigma());
  }
  // A lower bound of top-p's cutoff: V logits below it together weigh less than (1 - top_p) * total. The weight of the
  // largest logit is 1.
  SPECDEC_HD float top_p_bound(float max, double total, int64_t V) const {
    return clamped(max - log(double(V) / ((1 - double(top_p)) * total)) / scale());
  }
  SPECDEC_HD static float clamped(double z) { return z > -FLT_MAX ? float(z) : -FLT_MAX; }
};

// The bits of a float as an unsigned integer that sorts as the float does, with -0 before +0.
SPECDEC_HD uint32_t ordered(float z) {
  union {
    float f;
    uint32_t u;
  } bits{z};
  return bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

SPECDEC_HD float from_ordered(uint32_t key) {
  union {
    uint32_t u;
    float f;
  } bits{key & 0x80000000u ? key & 0x7fffffffu : ~key};
  return bits.f;
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The residual: the distribution that is left after several rejections. It is evaluated id by id and never stored.
#pragma once

#include "mixture.h"
#include "arguments.h"

namespace specdec {

// One rejection. The weight r(v) of each id v becomes (x - s * min(q(v), cap * x))+ with x = m * r(v).
struct Subtraction {
  Dist q;  // one-hot: its token keeps no weight; kNothing: r becomes m * r
  float m = 1, s = 1;
  float cap = FLT_MAX;
  int64_t removed = -1;  // a token that is removed from the q of later subtractions; -1: none
};

// Draws without replacement remove ids from a distribution. Once the rest weighs less than this, its stats are computed
// again, relative to its own largest logit. Until then, the weights that kLeastExponent (row.h) drops are less than
// 2^-42 of the rest: at most 2^24 logits of less than 2^-126 each.
constexpr double kEnough = 0x1p-60;

// The tokens removed by the first n subtractions; -1 for a subtraction that removed none
SPECDEC_HD Few removed_by(const Subtraction* subtractions, int64_t n) {
  static_assert(sizeof(Subtraction) % sizeof(int64_t) == 0);
  return {n > 0 ? &subtractions->removed : nullptr, n, int64_t(sizeof(Subtraction) / sizeof(int64_t))};
}

// Subtracts q with the factors m = s = 1 and no cap.
SPECDEC_HD Subtraction subtracting(const Dist& q) {
  Subtraction subtraction;
  subtraction.q = q;
  return subtraction;
}

// The weights of p, or of the mixture if there is one, after n subtractions. They need not sum to 1. A subtraction from
// a normalised residual includes the normaliser in its m.
struct Residual {
  Dist p;
  const Subtraction* subtractions = nullptr;
  int64_t n = 0;
  const Mixture* mixture = nullptr;

  // Whether one of the first `before` subtractions removed id v
  SPECDEC_HD bool is_removed(int64_t v, int64_t before) const { return removed_by(subtractions, before).has(v); }

  // The weight of id v; NaN if p is a probability row with NaN or +inf at v
  SPECDEC_HD double weight(int64_t v) const {
    double r = p.prob(v);
    if (r < 0) r = 0;
    if (mixture) r = v < p.row.V ? mixture->weight(r, v) : 0;
    for (int64_t j = 0; j < n; ++j) {
      const Subtraction& subtraction = subtractions[j];
      r *= subtraction.m;
      if (subtraction.q.kind == Kind::kNothing) continue;
      if (subtraction.q.kind == Kind::kOneHot) {
        if (subtraction.q.hot == v) r *= 0;
        continue;
      }
      const double q = is_removed(v, j) ? 0 : draft_prob(subtraction.q.prob(v));
      r = subtracted_weight(r, q, subtraction.s, subtraction.cap);
    }
    return r;
  }
};

}  // namespace specdec

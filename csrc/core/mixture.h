// SPDX-License-Identifier: Apache-2.0
// A distribution pi made of p and q, and its residual after q is subtracted. Both are evaluated id by id, never stored.
#pragma once

#include "accept.h"
#include "row.h"
#include "weight.h"

namespace specdec {

// The weight of id v is (m pi(v) - minus q(v))+.
struct Mixture {
  Dist q;               // its probabilities count as draft_prob() of them (accept.h)
  bool capped = false;  // true: pi = max(min(q, of_q p), of_p p). False: of_p p + of_q q where q is kept, else of_p p
  float of_p = 1, of_q = 0;
  Dist score_row;                // q is kept at the ids whose entry in this row is >= threshold; kNothing: everywhere
  float threshold = -HUGE_VALF;  // NaN: q is kept nowhere
  float m = 1, minus = 0;

  // The factor of q(v) in the weight, where q is kept
  SPECDEC_HD float kept() const { return m * of_q - minus; }

  SPECDEC_HD bool keeps(int64_t v) const {
    if (score_row.kind == Kind::kNothing) return true;
    if (score_row.kind == Kind::kOneHot) return (v == score_row.hot ? 1.0f : 0.0f) >= threshold;
    return v < score_row.row.V && score_row.row.entry(v) >= threshold;
  }

  SPECDEC_HD double weight(double p, int64_t v) const { return weight_of(p, draft_prob(q.prob(v)), v); }

  // The weight from x = p(v) and y = draft_prob(q(v))
  template <class T>
  SPECDEC_HD T weight_of(T x, T y, int64_t v) const {
    return capped ? capped_weight(x, y, of_q, of_p, m, minus)
                  : mixed_weight(x, y, m * of_p, keeps(v) ? kept() : -minus);
  }
};

}  // namespace specdec

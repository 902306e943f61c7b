// SPDX-License-Identifier: Apache-2.0
// A law made of two, p and q, and what of it is left when q is taken away: evaluated id by id, never stored.
#pragma once

#include "accept.h"
#include "row.h"
#include "weight.h"

namespace specdec {

// Its weight at v is m pi(v) - minus q(v) where that is positive.
struct Mixture {
  Dist q;               // as a residual sees it
  bool capped = false;  // pi is max(min(q, of_q p), of_p p); else of_p p + of_q q where q is kept, of_p p elsewhere
  float of_p = 1, of_q = 0;
  Dist score_row;                // q is kept where this row's entry reaches the cut; kNothing: everywhere
  float threshold = -HUGE_VALF;  // NaN keeps nothing
  float m = 1, minus = 0;

  SPECDEC_HD float kept() const { return m * of_q - minus; }

  SPECDEC_HD bool keeps(int64_t v) const {
    if (score_row.kind == Kind::kNothing) return true;
    if (score_row.kind == Kind::kOneHot) return (v == score_row.hot ? 1.0f : 0.0f) >= threshold;
    return v < score_row.row.V && score_row.row.entry(v) >= threshold;
  }

  SPECDEC_HD double weight(double p, int64_t v) const { return weight_of(p, draft_prob(q.prob(v)), v); }

  // From p(v), and q(v) as a residual sees it.
  template <class T>
  SPECDEC_HD T weight_of(T x, T y, int64_t v) const {
    return capped ? capped_weight(x, y, of_q, of_p, m, minus)
                  : mixed_weight(x, y, m * of_p, keeps(v) ? kept() : -minus);
  }
};

}  // namespace specdec

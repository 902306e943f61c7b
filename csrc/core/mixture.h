// SPDX-License-Identifier: Apache-2.0
// A law made of two, p and q, and what of it is left when q is taken away: evaluated id by id, never stored.
#pragma once

#include "accept.h"
#include "row.h"

namespace specdec {

// Its weight at v, m pi(v) - minus q(v) where that is positive, is put together so that nothing cancels where pi(v) is
// q(v).
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
    return v < score_row.row.V && load_scalar(score_row.row, v) >= threshold;
  }

  SPECDEC_HD double weight(double p, int64_t v) const {
    const double y = draft_prob(q.prob(v));
    double w;
    if (capped) {
      const double most = of_q * p, least = of_p * p, x = y < most ? y : most;
      w = m * (x < least ? least : x) - minus * y;
    } else {
      w = m * of_p * p + (keeps(v) ? kept() : -minus) * y;
    }
    return w < 0 ? 0 : w;
  }
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Brackets a root in t of an equation that contains U(t) = sum (p - t q)+ (pair_sums.h), using the values of U computed
// so far. U is convex and decreasing. So inside the bracket, U lies below the chord between the bracket's ends. It lies
// above the two lines that extend the neighbouring chords, left and right of the bracket, into it.
#pragma once

#include "pair_sums.h"

namespace specdec {

struct Point {
  double t, under;  // under: U(t)
};

SPECDEC_HD double slope(const Point& a, const Point& b) { return (b.under - a.under) / (b.t - a.t); }

// The values of t that one pass over the pair evaluates, and U(t) at each
struct Candidates {
  float t[kCandidates];
  double under[kCandidates];

  // Point i. It is selected by the bits of i, not by an index: GPU threads keep the arrays in registers, which cannot
  // be indexed.
  SPECDEC_HD Point operator[](int i) const {
    static_assert(kCandidates == 4);
    const Point low{i & 1 ? t[1] : t[0], i & 1 ? under[1] : under[0]};
    const Point high{i & 1 ? t[3] : t[2], i & 1 ? under[3] : under[2]};
    return i & 2 ? high : low;
  }
};

struct Bracket {
  Point lo, hi;          // lo.t < root <= hi.t
  double before, after;  // slopes of the neighbouring chords: before <= any slope inside the bracket <= after

  SPECDEC_HD bool holds(double t) const { return t > lo.t && t < hi.t; }

  // Moves the ends of the bracket to the candidates inside it. Bit m of `reached` is set if root <= the t of candidate
  // m. slope() divides, so it is called only for an end that moved.
  SPECDEC_HD void shrink(const Candidates& candidates, uint32_t reached) {
    Point from = lo, to = hi;
    bool later = false, sooner = false;
    for (int m = 0; m < kCandidates; ++m) {
      const Point x = candidates[m];
      if (holds(x.t) && !(reached >> m & 1)) from = lo, lo = x, later = true;
    }
    for (int m = kCandidates - 1; m >= 0; --m) {
      const Point x = candidates[m];
      if (holds(x.t) && reached >> m & 1) to = hi, hi = x, sooner = true;
    }
    if (later) before = slope(from, lo);
    if (sooner) after = slope(hi, to);
  }
};

}  // namespace specdec

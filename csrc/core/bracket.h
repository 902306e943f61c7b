// SPDX-License-Identifier: Apache-2.0
// Between which t a root lies that depends on U(t) = sum (p - t q)+, from what U was found to be (see pair_sums.h). U
// is convex and falls: inside the bracket it lies below its chord, and above the lines through what was found on either
// side, drawn on into it.
#pragma once

#include "pair_sums.h"

namespace specdec {

struct Point {
  double t, under;  // U(t)
};

SPECDEC_HD double slope(const Point& a, const Point& b) { return (b.under - a.under) / (b.t - a.t); }

struct Bracket {
  Point lo, hi;          // the root is behind lo, and not behind hi
  double before, after;  // slopes of U: no more than inside the bracket, no less

  SPECDEC_HD bool holds(double t) const { return t > lo.t && t < hi.t; }

  // reached(x): whether the root is not behind x
  template <class Reached>
  SPECDEC_HD void shrink(const float (&t)[kCandidates], const double (&under)[kCandidates], const Reached& reached) {
    bool end[kCandidates];
    for (int m = 0; m < kCandidates; ++m) end[m] = reached(Point{t[m], under[m]});
    for (int m = 0; m < kCandidates; ++m) {
      const Point x{t[m], under[m]};
      if (holds(x.t) && !end[m]) before = slope(lo, x), lo = x;
    }
    for (int m = kCandidates - 1; m >= 0; --m) {
      const Point x{t[m], under[m]};
      if (holds(x.t) && end[m]) after = slope(x, hi), hi = x;
    }
  }
};

}  // namespace specdec

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

// What a pass over the pair looks at
struct Candidates {
  float t[kCandidates];
  double under[kCandidates];

  // Chosen in halves: a device's threads hold them in registers, which have no index.
  SPECDEC_HD Point operator[](int i) const {
    static_assert(kCandidates == 4);
    const Point low{i & 1 ? t[1] : t[0], i & 1 ? under[1] : under[0]};
    const Point high{i & 1 ? t[3] : t[2], i & 1 ? under[3] : under[2]};
    return i & 2 ? high : low;
  }
};

struct Bracket {
  Point lo, hi;          // the root is behind lo, and not behind hi
  double before, after;  // slopes of U: no more than inside the bracket, no less

  SPECDEC_HD bool holds(double t) const { return t > lo.t && t < hi.t; }

  // reached: bit m says that the root is not behind candidate m. Only the slopes at the ends are divided for.
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

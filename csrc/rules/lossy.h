// SPDX-License-Identifier: Apache-2.0
// Lossy speculative sampling (Tran-Thien 2023): pi = max(min(q, c p), p / beta) with c = 1 / (1 - alpha) and the beta
// >= 1 that makes pi sum to 1: h(beta) = sum (p - beta q)+ - beta R = 0 with R = sum (q - c p)+. h is convex and falls,
// so the chord of a bracket meets 0 behind its root, and the line through two points on one side of the root, drawn on,
// meets 0 before it.
#pragma once

#include "../core/residual.h"
#include "../core/pair_sums.h"
#include "rule_dist.h"

namespace specdec {

class LossyBracket {
 public:
  SPECDEC_HD void add(double t, double h) {
    const Point x{t, h};
    if (h > 0) {
      if (t > lo_.t) lo2_ = lo_, lo_ = x;
    } else if (!has_hi() || t < hi_.t) {
      hi2_ = hi_, hi_ = x;
    }
  }
  SPECDEC_HD bool has_hi() const { return hi_.t > 0; }
  SPECDEC_HD double below() const {
    double t = lo_.t;
    if (lo2_.t > 0) t = larger(t, meets_0(lo2_, lo_));
    if (hi2_.t > 0) t = larger(t, meets_0(hi_, hi2_));
    return has_hi() && t > hi_.t ? hi_.t : t;
  }
  SPECDEC_HD double above() const { return meets_0(lo_, hi_); }

 private:
  struct Point {
    double t = 0, h = 0;  // t = 0: none
  };
  SPECDEC_HD static double larger(double a, double b) { return b > a ? b : a; }
  SPECDEC_HD static double meets_0(const Point& a, const Point& b) {
    return a.h > b.h ? a.t + a.h * (b.t - a.t) / (a.h - b.h) : a.t;
  }

  Point lo2_, lo_, hi_, hi2_;  // h > 0 at the first two
};

// 1 / beta, in [0, 1]; NaN if a row is no law. `subtraction` lies in the executor's memory.
template <class Executor>
SPECDEC_WALK double lossy_scale(Executor& executor, const Dist& p, const Dist& q, double alpha,
                                Subtraction& subtraction) {
  constexpr double kClose = 0x1p-21;
  constexpr int kMostPasses = 24;
  const double c = 1 / (1 - alpha);
  double R = q.kind == Kind::kOneHot ? 1 - c * p.prob(q.hot) : 0;
  if (q.kind != Kind::kOneHot) {
    once(executor, [&] { subtraction = subtracting(p), subtraction.s = float(c); });
    R = executor.sum(Residual{q, &subtraction, 1});
  }
  const PairMass mass = executor.masses(p, q);
  if (!(mass.p > 0 && mass.q > 0)) return NAN;
  if (!(R > FLT_MIN)) return 0;

  LossyBracket bracket;
  float t[kCandidates] = {1, 1.5f, 3, 12};
  for (int pass = 0; pass < kMostPasses; ++pass) {
    double clipped_sums[kCandidates];
    executor.clipped_sums(p, q, t, clipped_sums);
    if (pass == 0 && clipped_sums[0] <= R) return 1;  // but for rounding h(1) = TV - R >= 0
    for (int m = 0; m < kCandidates; ++m) bracket.add(t[m], clipped_sums[m] - t[m] * R);
    const double least = bracket.below(), most = bracket.has_hi() ? bracket.above() : least * 0x1p12;
    if (bracket.has_hi() && !(most - least > kClose * most)) return 1 / most;
    const double step = cbrt(most / least);
    const double at[kCandidates] = {least, least * step, least * step * step, most};
    for (int m = 0; m < kCandidates; ++m) t[m] = float(at[m] < 0x1p126 ? at[m] : 0x1p126);  // 1 / R at most, and finite
  }
  return 1 / bracket.above();
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Lossy speculative sampling (Tran-Thien 2023): pi = max(min(q, c p), p / beta) with c = 1 / (1 - alpha). pi sums to 1
// for the beta >= 1 that solves U(beta) = beta R, where U(t) = sum (p - t q)+ and R = sum (q - c p)+. The search uses a
// Bracket (core/bracket.h). U lies below the bracket's chord, so the chord meets the line t R at or after the root. U
// lies above the extended neighbouring chords, so they meet the line t R at or before the root.
#pragma once

#include "../core/residual.h"
#include "../core/bracket.h"
#include "rule_dist.h"

namespace specdec {

// Returns 1 / beta, in [0, 1]; NaN if a row is invalid. `subtraction` is scratch space in the executor's memory.
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

  // The t at which the line through x with this slope meets the line t R
  const auto meets = [=](const Point& x, double slope) { return x.t + (x.under - x.t * R) / (R - slope); };
  Bracket bracket;
  Candidates at{{1, 1.5f, 3, 12}, {}};
  for (int pass = 0; pass < kMostPasses; ++pass) {
    executor.clipped_sums(p, q, at.t, at.under);
    if (pass == 0) {
      if (at.under[0] <= R) return 1;  // U(1) = TV >= R, except for rounding: beta is 1
      bracket = {at[0], {HUGE_VAL, 0}, -HUGE_VAL, 0};
    }
    uint32_t reached = 0;
    for (int m = 0; m < kCandidates; ++m) reached |= uint32_t(at.under[m] <= at.t[m] * R) << m;
    bracket.shrink(at, reached);
    const bool closed = bracket.hi.t < HUGE_VAL;
    double least = meets(bracket.lo, bracket.before);
    if (!(least > bracket.lo.t)) least = bracket.lo.t;
    if (closed) {
      const double from_hi = meets(bracket.hi, bracket.after);
      if (from_hi > least) least = from_hi;
      if (least > bracket.hi.t) least = bracket.hi.t;
    }
    const double most = closed ? meets(bracket.lo, slope(bracket.lo, bracket.hi)) : least * 0x1p12;
    if (closed && !(most - least > kClose * most)) return 1 / most;
    const double step = cbrt(most / least);
    const double next[kCandidates] = {least, least * step, least * step * step, most};
    for (int m = 0; m < kCandidates; ++m)
      at.t[m] = float(next[m] < 0x1p126 ? next[m] : 0x1p126);  // beta <= 1 / R < 2^126
  }
  return 1 / meets(bracket.lo, slope(bracket.lo, bracket.hi));
}

}  // namespace specdec

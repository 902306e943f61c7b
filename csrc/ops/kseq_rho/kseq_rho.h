// SPDX-License-Identifier: Apache-2.0
// The best rho of K-SEQ (Sun et al. 2023, "SpecTr": p* of Algorithm 3; there p is the draft and q the target), for any
// Executor.
//
// With beta = sum min(q, p / rho), f(rho) = 1 - (1 - beta)^k - rho beta falls from f(1) >= 0 to f(k) <= 0, and K-SEQ is
// valid where f <= 0: rho* is the smallest root. At a larger rho the chance to accept is less by no more than |f|,
// since rho beta grows with rho.
//
// Here f = D - r^k with D = sum (p - rho q)+ = 1 - rho beta and r = 1 - beta: both may be tiny over a wide range of
// rho, where p is close to q or k is large, and |f| alone would hardly tell one rho from another. Both come from U(t) =
// sum (p - t q)+ and the rows' totals. U is off by at most 4 u of itself, u = 2^-24 (pair_sums.h), and f then by at
// most 4 u D: dr^k = k r^(k-1) dD / rho, and k r^(k-1) beta <= 1 - r^k = rho beta at the root. So D (1 + 4 u) <= r^k is
// a proof of f <= 0.
//
// The root lies between the roots under U's bounds in a bracket (bracket.h). A pass over the pair looks at four
// candidates there. f changes by no more than rho does, both relative, so 16 u = 2^-20 is left of |f| at most.
#pragma once

#include "../../core/row.h"
#include "../../core/bracket.h"

namespace specdec {

struct KSeq {
  double rho, beta, p_acc;
};

namespace kseq {

constexpr double kGuard = 4 * 0x1p-24;
constexpr double kTight = 0x1p-21;  // of a bracket: it is narrow enough
constexpr double kLoose = 0x1p-16;  // if |f| is small there
constexpr int kSmoothPasses = 10;   // then the bracket is cut in five, which ends whatever the rounding
constexpr int kMostPasses = 24;

SPECDEC_HD double power(double r, int64_t k) {
  double all = 1;
  for (; k > 0; k >>= 1) {
    if (k & 1) all *= r;
    r *= r;
  }
  return all;
}

// f = D - r^k
struct Excess {
  double D, none;

  // Above what it may be if U is off by `guard` of itself
  SPECDEC_HD double with(double guard) const { return D * (1 + guard) - none; }
};

// A point's t stands for rho = t q / p where p and q are the rows' totals.
struct Pair {
  PairMass mass;
  double inverse;  // 1 / mass.p
  int64_t k;

  SPECDEC_HD double rejected(const Point& x) const {
    const double r = (x.under + (x.t * mass.q - mass.p)) / (x.t * mass.q);
    return r > 0 ? (r < 1 ? r : 1) : 0;  // but for rounding it lies in [0, 1]
  }
  SPECDEC_HD Excess excess(const Point& x) const { return {x.under * inverse, power(rejected(x), k)}; }
};

// f > 0 at lo, f <= 0 at hi
struct Roots : Bracket {
  SPECDEC_HD bool closed(const Pair& pair) const {
    const double width = hi.t - lo.t;
    if (width <= kTight * hi.t) return true;
    const Excess at_hi = pair.excess(hi);
    return (width <= kLoose * hi.t && at_hi.with(0) > -2 * kGuard) || !(at_hi.with(2 * kGuard) <= 0);
  }

  template <class Executor>
  SPECDEC_HD void candidates(const Executor& executor, const Pair& pair, bool smooth, float (&t)[kCandidates]) const {
    const double width = hi.t - lo.t;
    double a = 0.2, b = 0.8;
    if (smooth) {
      const double chord = slope(lo, hi), u = width * (chord - before), v = width * (after - chord);
      executor.both([&](bool dips) { return crossing(executor, pair, dips ? u : 0, dips ? v : 0); }, b, a);
      a -= 0x1p-10;
    }
    for (int m = 0; m < kCandidates; ++m) t[m] = float(lo.t + width * (a + (b - a) * (m * (1.0 / (kCandidates - 1)))));
  }

 private:
  // Where f crosses 0 in the bracket if U dips below its chord by min(w u, (1 - w) v) at w, in 32nds of 32nds, rounded
  // up.
  template <class Executor>
  SPECDEC_HD double crossing(const Executor& executor, const Pair& pair, double u, double v) const {
    double begin = 0, step = 1;
    for (int round = 0; round < 2; ++round) {
      step /= 32;
      const int first = executor.first_of_32([&](int i) {
        const double w = begin + (i + 1) * step, n = 1 - w, dip = w * u < n * v ? w * u : n * v;
        const double under = n * lo.under + w * hi.under - (dip > 0 ? dip : 0);
        return pair.excess({n * lo.t + w * hi.t, under > 0 ? under : 0}).with(1.5 * kGuard) <= 0;
      });
      begin += (first < 31 ? first : 31) * step;
    }
    return begin + step;
  }
};

}  // namespace kseq

// Needs of the Executor: masses(p, q), clipped_sums(p, q, t, under) as often as wanted, which_of, first_of_32 and both.
// A pair with a row that is no law gives rho = k, which is valid for every pair of laws, with beta = p_acc = NaN. p: a
// Dist, or what else the Executor can tell the masses of.
template <class Executor, class Target>
SPECDEC_HD KSeq kseq_rho(Executor& executor, const Target& p, const Dist& q, int64_t k) {
  using namespace kseq;
  if (k < 1) k = 1;
  const PairMass mass = executor.masses(p, q);
  const Pair pair{mass, 1 / mass.p, k};
  if (!(pair.mass.p > 0 && pair.mass.p < HUGE_VAL && pair.mass.q > 0)) return {double(k), NAN, NAN};

  const double one = pair.mass.p / pair.mass.q, step = cbrt(double(k));
  Candidates at{{float(one), float(one * step), float(one * step * step), float(one * double(k))}, {}};
  const double most = at.t[3];
  Roots bracket{};
  for (int pass = 1;; ++pass) {
    executor.clipped_sums(p, q, at.t, at.under);
    const uint32_t reached =
        executor.which_of(kCandidates, [&](int m) { return pair.excess(at[m]).with(kGuard) <= 0; });
    if (pass == 1) {
      bracket = {{at[0], at[3], (at.under[0] - pair.mass.p) / at.t[0], 0}};
      if (k == 1 || reached & 1) bracket.hi = bracket.lo;
    }
    bracket.shrink(at, reached);
    if (bracket.closed(pair) || pass == kMostPasses) break;
    bracket.candidates(executor, pair, pass < kSmoothPasses, at.t);
  }
  const Point found = bracket.hi;
  const double rho = found.t / one, r = pair.rejected(found);
  if (k > 1 && found.under >= pair.mass.p * (1 - kGuard))
    return {double(k), 0, 0};  // nothing in common that could be told from rounding
  return {found.t == most || rho > double(k) ? double(k) : rho > 1 ? rho : 1, 1 - r, 1 - power(r, k)};
}

}  // namespace specdec

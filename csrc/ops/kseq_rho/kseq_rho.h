// SPDX-License-Identifier: Apache-2.0
// The best rho of K-SEQ (Sun et al. 2023, "SpecTr": p* of Algorithm 3), for any Executor. Here p is the target and q
// the draft; in the paper it is the reverse.
//
// Let beta = sum min(q, p / rho) and
//   f(rho) = 1 - (1 - beta)^k - rho beta.
// f falls from f(1) >= 0 to f(k) <= 0. K-SEQ is valid if f(rho) <= 0, so the best rho is the smallest root of f. A
// larger rho lowers the acceptance probability by no more than |f(rho)|, since rho beta grows with rho.
//
// The search uses
//   f = D - r^k with D = sum (p - rho q)+ = 1 - rho beta and r = 1 - beta.
// If p is close to q or k is large, D and r^k may be tiny over a wide range of rho. A test of |f| alone would then stop
// far from the root. D and r come from U(t) = sum (p - t q)+ and the totals of the rows. The relative error of U is at
// most 4 u with u = 2^-24 (pair_sums.h). The error of f is then at most 4 u D, since at the root
//   dr^k = k r^(k-1) dD / rho and k r^(k-1) beta <= 1 - r^k = rho beta.
// So D (1 + 4 u) <= r^k proves that f <= 0.
//
// Inside a bracket (bracket.h), the root lies between the roots for the lower and the upper bound of U. A pass over the
// pair evaluates four candidates between these two. A relative change of rho changes f by no more than the same amount,
// so |f| is at most 2^-20 = 16 u at the end.
#pragma once

#include "../../core/row_pairs.h"
#include "../../core/bracket.h"

namespace specdec {

struct KSeq {
  double rho, beta, p_acc;
};

namespace kseq {

constexpr double kGuard = 4 * 0x1p-24;
constexpr double kTight = 0x1p-21;  // relative width of a bracket that is narrow enough
constexpr double kLoose = 0x1p-16;  // wider, but narrow enough if |f| is small there
constexpr int kSmoothPasses = 10;   // then each pass cuts the bracket in five: that ends despite rounding
constexpr int kMostPasses = 24;

SPECDEC_HD double power(double r, int64_t k) {
  double all = 1;
  for (; k > 0; k >>= 1) {
    if (k & 1) all *= r;
    r *= r;
  }
  return all;
}

// f = D - r^k. `none` is r^k: the probability that none of k drafts is accepted.
struct Excess {
  double D, none;

  // An upper bound of f if the relative error of U is at most `guard`
  SPECDEC_HD double with(double guard) const { return D * (1 + guard) - none; }
};

// A pair of rows. The t of a point stands for rho = t q / p, where p and q are the totals of the rows.
struct Pair {
  PairMass mass;
  double inverse;  // 1 / mass.p
  int64_t k;

  SPECDEC_HD double rejected(const Point& x) const {
    const double r = (x.under + (x.t * mass.q - mass.p)) / (x.t * mass.q);
    return r > 0 ? (r < 1 ? r : 1) : 0;  // only rounding can take r out of [0, 1]
  }
  SPECDEC_HD Excess excess(const Point& x) const { return {x.under * inverse, power(rejected(x), k)}; }
};

// A bracket of the root: f > 0 at lo, f <= 0 at hi
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
  // The place in the bracket at which f crosses 0 if U lies below its chord by min(w u, (1 - w) v) at each place w. A
  // place is a fraction of the bracket's width; the result is rounded up to a multiple of 1 / 32^2.
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

// The best rho for k drafts, with its beta and its acceptance probability p_acc = 1 - r^k. If a row is invalid, rho is
// k, which is valid for every pair of distributions, and beta and p_acc are NaN. p is a Dist, or anything else that the
// Executor's masses() takes. The Executor must have masses(p, q), clipped_sums(p, q, t, under), which_of, first_of_32
// and both (cpu/row_executor.h).
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
    return {double(k), 0, 0};  // an overlap, if any, is smaller than the rounding error
  return {found.t == most || rho > double(k) ? double(k) : rho > 1 ? rho : 1, 1 - r, 1 - power(r, k)};
}

struct KSeqRho : RowPairs {
  static constexpr const char* kName = "kseq_rho";
  Ints k;                                                    // [N]
  double *rho = nullptr, *beta = nullptr, *p_acc = nullptr;  // [N]

  SPECDEC_HD void write(int64_t n, const KSeq& x) const { rho[n] = x.rho, beta[n] = x.beta, p_acc[n] = x.p_acc; }
};

}  // namespace specdec

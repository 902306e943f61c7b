// SPDX-License-Identifier: Apache-2.0
// What several rejections leave of a law, evaluated id by id: no residual is ever stored.
#pragma once

#include "mixture.h"
#include "views.h"

namespace specdec {

// One step of a chain: r(v) becomes (x - s * min(q(v), cap * x))+ with x = m * r(v).
struct Link {
  Dist q;              // one-hot: its token keeps nothing; kNothing: r becomes m * r
  float m = 1, s = 1;
  float cap = FLT_MAX;
  int64_t gone = -1;   // a token that the q of the links behind this one no longer hold
};

// What is left of a law is measured anew, from its own largest logit, once it weighs less than this. Until then what kLeastExponent
// takes away is less than 2^-42 of it: at most 2^24 logits.
constexpr double kEnough = 0x1p-60;

// Ids that have been taken out of a row.
struct Taken {
  const int64_t* first = nullptr;
  int64_t n = 0, stride = 1;  // in int64s

  SPECDEC_HD int64_t operator[](int64_t i) const { return first[i * stride]; }
  SPECDEC_HD bool has(int64_t v) const {
    for (int64_t i = 0; i < n; ++i) {
      if ((*this)[i] == v) return true;
    }
    return false;
  }
};

// The tokens that left with the first n links; -1 of a link that took none.
SPECDEC_HD Taken gone(const Link* links, int64_t n) {
  static_assert(sizeof(Link) % sizeof(int64_t) == 0);
  return {n > 0 ? &links->gone : nullptr, n, int64_t(sizeof(Link) / sizeof(int64_t))};
}

SPECDEC_HD Link subtracting(const Dist& q) {
  Link link;
  link.q = q;
  return link;
}

// p after its links; not normalised, so a link's m carries the normaliser of what was before it. A blend stands in for p.
struct Chain {
  Dist p;
  const Link* links = nullptr;
  int64_t n = 0;
  const Blend* blend = nullptr;

  SPECDEC_HD bool is_gone(int64_t v, int64_t before) const { return gone(links, before).has(v); }

  // NaN where p is a probability that is none.
  SPECDEC_HD double weight(int64_t v) const {
    double r = p.prob(v);
    if (r < 0) r = 0;
    if (blend) r = v < p.row.V ? blend->weight(r, v) : 0;
    for (int64_t j = 0; j < n; ++j) {
      const Link& link = links[j];
      r *= link.m;
      if (link.q.kind == Kind::kNothing) continue;
      if (link.q.kind == Kind::kOneHot) {
        if (link.q.hot == v) r *= 0;
        continue;
      }
      const double q = is_gone(v, j) ? 0 : draft_prob(link.q.prob(v)), most = link.cap * r;
      r -= link.s * (q < most ? q : most);
      if (r < 0) r = 0;
    }
    return r;
  }
};

}  // namespace specdec

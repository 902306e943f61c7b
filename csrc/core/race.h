// SPDX-License-Identifier: Apache-2.0
// The race: one token of a distribution, as a function of the row, a seed and a position. Each id gets noise of its
// own, and the id with the largest ln p + noise wins (the Gumbel-max trick). A draft that runs the race of the same
// seed and position on its own row often has the same winner.
#pragma once

#include "final_token.h"
#include "philox.h"
#include "rows.h"

namespace specdec {

// No noise is outside these: those of u = 2^-53 and 1 - 2^-53 are -3.604 and 36.737.
constexpr double kLeastNoise = -3.61, kMostNoise = 36.74;

// The noise of all ids at one position
struct Noise {
  int64_t seed = 0, position = 0;

  // In (0, 1), never 0 or 1: the middle of one of 2^52 equal parts
  SPECDEC_HD double uniform_of(int64_t id) const {
    const double u = uniform(seed, position, kDomainNoise, uint64_t(id));
    return (floor(u * 0x1p52) + 0.5) * 0x1p-52;
  }
  // Standard Gumbel noise. Its last bits are those of the platform's logarithm.
  SPECDEC_HD double operator()(int64_t id) const { return -log(-log(uniform_of(id))); }
};

// The noise of the token `after` tokens later. Positions wrap around.
SPECDEC_HD Noise later(const Noise& noise, int64_t after) {
  return {noise.seed, int64_t(uint64_t(noise.position) + uint64_t(after))};
}

// An id in a race with its key: race_weight() + noise, which is ln p + noise plus a constant of the row. id -1: none.
// If a key is NaN, the whole row is invalid.
struct Racer {
  double key = -HUGE_VAL;
  int64_t id = -1;

  // Becomes `other` if its key is larger, equal with a lower id, or NaN.
  SPECDEC_HD void meet(const Racer& other) {
    if (other.key > key || (other.key == key && other.id < id) || other.key != other.key) *this = other;
  }
};

// ln of an entry's weight in float64: -inf if it is not kept, NaN if it makes the row invalid. For logits the row's
// maximum is subtracted, which changes no order.
SPECDEC_HD double race_weight(const Dist& d, float z) {
  if (d.kind == Kind::kProbs) return log(double(clean_prob(z)));
  return z >= d.stats.cutoff ? (double(z) - double(d.stats.max)) * double(d.stats.scale) : -HUGE_VAL;
}

// ln of the sum of two weights that are given by their ln. The weights of entries with one id add up.
SPECDEC_HD double sum_of_weights(double x, double y) {
  const double larger = x < y ? y : x, smaller = x < y ? x : y;
  return smaller == -HUGE_VAL ? larger : larger + log1p(exp(smaller - larger));
}

// A race reads no draft row, but torch.ops may be given some. These keep V alone, since ids_end() says where a draft
// ends.
inline Rows unread(const Rows& draft) {
  Rows rows;
  rows.memory.V = draft.ids ? kIdsEnd : draft.memory.V;
  return rows;
}

// The winner of the race on the target's distribution p, with its logprob. An invalid row sets the status and gives its
// largest finite entry with logprob NaN. An executor's race(p, noise) takes a p that has a row; it returns -1 if
// nothing is kept or the row is invalid.
template <class Executor>
SPECDEC_WALK Final winner(Executor& executor, const Dist& p, const Noise& noise, int32_t& status) {
  const int64_t token = p.kind == Kind::kOneHot                  ? p.hot
                        : p.kind == Kind::kNothing || !p.valid() ? -1
                                                                 : executor.race(p, noise);
  if (token >= 0) return {token, executor.leads() ? p.log_prob(token) : 0};
  status |= kInvalidRow;
  return {p.kind == Kind::kNothing ? 0 : executor.argmax_finite(p.row), NAN};
}

}  // namespace specdec

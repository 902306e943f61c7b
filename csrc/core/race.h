// SPDX-License-Identifier: Apache-2.0
// The race: a way to draw one token from a distribution. The token is a function of the row, a seed and a position.
// Each id gets a random number, its noise, and the id with the largest ln p + noise wins (the Gumbel-max trick). A
// draft that runs the race with the same seed and position on its own row often gets the same winner.
#pragma once

#include "final_token.h"
#include "philox.h"
#include "rows.h"

namespace specdec {

// Bounds of the noise. For the smallest uniform, 2^-53, it is -3.604; for the largest, 1 - 2^-53, it is 36.737.
constexpr double kLeastNoise = -3.61, kMostNoise = 36.74;

// The noise of all ids at one position
struct Noise {
  int64_t seed = 0, position = 0;

  // The uniform of an id. It is the middle of one of 2^52 equal parts of (0, 1), so it is never 0 or 1.
  SPECDEC_HD double uniform_of(int64_t id) const {
    const double u = uniform(seed, position, kDomainNoise, uint64_t(id));
    return (floor(u * 0x1p52) + 0.5) * 0x1p-52;
  }
  // The standard Gumbel noise of an id. Its last bits depend on the platform's logarithm.
  SPECDEC_HD double operator()(int64_t id) const { return -log(-log(uniform_of(id))); }
};

// The noise at the position `after` tokens later. Positions wrap around.
SPECDEC_HD Noise later(const Noise& noise, int64_t after) {
  return {noise.seed, int64_t(uint64_t(noise.position) + uint64_t(after))};
}

// An id in a race with its key: race_weight() + noise, which is ln p + noise plus a constant of the row. id -1: none.
// If a key is NaN, the whole row is invalid.
struct Racer {
  double key = -HUGE_VAL;
  int64_t id = -1;

  // Becomes `other` if other's key is larger, or equal with a lower id, or NaN.
  SPECDEC_HD void meet(const Racer& other) {
    if (other.key > key || (other.key == key && other.id < id) || other.key != other.key) *this = other;
  }
};

// ln of an entry's weight in float64: -inf if it is not kept, NaN for a probability that makes the row invalid. For
// logits the row's maximum is subtracted, which does not change the order of the keys.
SPECDEC_HD double race_weight(const Dist& d, float z) {
  if (d.kind == Kind::kProbs) return log(double(clean_prob(z)));
  return z >= d.stats.cutoff ? (double(z) - double(d.stats.max)) * double(d.stats.scale) : -HUGE_VAL;
}

// ln of the sum of two weights, given the ln of each. Used where several entries have the same id: their weights add
// up.
SPECDEC_HD double sum_of_weights(double x, double y) {
  const double larger = x < y ? y : x, smaller = x < y ? x : y;
  return smaller == -HUGE_VAL ? larger : larger + log1p(exp(smaller - larger));
}

// A race reads no draft rows, but a caller of torch.ops may pass some. Returns rows that keep only the bound
// Rows::ids_end(), which decides whether a drafted token is valid.
inline Rows unread(const Rows& draft) {
  Rows rows;
  rows.memory.V = draft.ids ? kIdsEnd : draft.memory.V;
  return rows;
}

// The winner of the race on the target's distribution p, with its logprob. If p is invalid or keeps no entry, sets
// kInvalidRow and returns the id of the row's largest finite entry (0 if there is none), with logprob NaN. The
// executor's race(p, noise) returns -1 if no entry is kept or the row is invalid.
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

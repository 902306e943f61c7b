// SPDX-License-Identifier: Apache-2.0
// The residual norm((p - q)+) as a row of probabilities. If (p - q)+ has no mass, the row is norm(p). If p has none
// either, the row is one-hot at p's largest finite entry.
#pragma once

#include "../../core/arguments.h"

namespace specdec {

struct ResidualRows {
  int64_t N = 0;
  RowMemory p, q;          // [N, V], [N, Vq]
  Ints q_ids;              // [N], in place of q: one-hot drafts
  Present present;         // of the N rows
  float* probs = nullptr;  // [N, V]
  double* mass = nullptr;  // [N]

  SPECDEC_HD Dist target(int64_t n) const { return from_probs(p.at(0, n)); }
  SPECDEC_HD Dist draft(int64_t n) const { return q_ids ? one_hot(q_ids[n]) : from_probs(q.at(0, n)); }
};

// How a row is written: as weights times `inverse`, or, if they have no mass, as one-hot at `hot`.
struct Outcome {
  double inverse;
  int64_t hot;  // -1: weights
  bool minus;   // the weights are (p - q)+, else p
};

// Sets `mass` to the total of (p - q)+.
template <class Executor>
SPECDEC_WALK Outcome outcome(Executor& executor, const Dist& p, const Dist& q, double& mass) {
  mass = executor.sum(p, q);
  if (has_mass(mass)) return {1 / mass, -1, true};
  const double of_p = executor.sum(p, Dist{});
  return {1 / of_p, has_mass(of_p) ? -1 : executor.argmax_finite(p.row), false};
}

}  // namespace specdec

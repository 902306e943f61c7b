// SPDX-License-Identifier: Apache-2.0
// How sure a model is: of its softmax at T = 1 without filters, whatever the law that is sampled from.
#pragma once

#include "../core/views.h"

namespace specdec {

// A row of probabilities speaks for itself, and so does a drafted token without a row.
SPECDEC_HD bool is_unscaled(const Dist& d) {
  return d.kind == Kind::kProbs || !d.row || (d.stats.scale == 1 && d.stats.cutoff == -FLT_MAX);
}

// Reads the row once if the law does not say it.
template <class Executor>
SPECDEC_WALK Dist unscaled(Executor& executor, const Dist& sampled) {
  if (is_unscaled(sampled)) return sampled;
  Dist d = sampled;
  d.kind = Kind::kLogits;
  d.stats = executor.stats(sampled.row, Filters{});
  return d;
}

// The largest probability; NaN if the row is no law.
template <class Executor>
SPECDEC_WALK double largest(Executor& executor, const Dist& d) {
  if (d.kind == Kind::kOneHot) return 1;
  return d.kind == Kind::kLogits ? exp(-double(d.stats.log_norm)) : executor.largest_prob(d.row);
}

// The entry from which on a probability is at least `share` of the largest one; NaN for NaN.
SPECDEC_HD float threshold_at(const Dist& d, double largest, double share) {
  if (share <= 0) return -HUGE_VALF;
  return d.kind == Kind::kLogits ? float(d.stats.max + log(share)) : float(share * largest);
}

}  // namespace specdec

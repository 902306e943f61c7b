// SPDX-License-Identifier: Apache-2.0
// A model's confidence. It is measured on the softmax at T = 1 without filters, not on the distribution that is sampled
// from.
#pragma once

#include "../core/arguments.h"

namespace specdec {

// Whether d counts as the softmax at T = 1 without filters. Rows of probabilities and one-hot drafts without a row do.
SPECDEC_HD bool is_unscaled(const Dist& d) {
  return d.kind == Kind::kProbs || !d.row || (d.stats.scale == 1 && d.stats.cutoff == -FLT_MAX);
}

// The softmax at T = 1 without filters. Reads the row once, unless `sampled` counts as that softmax.
template <class Executor>
SPECDEC_WALK Dist unscaled(Executor& executor, const Dist& sampled) {
  if (is_unscaled(sampled)) return sampled;
  Dist d = sampled;
  d.kind = Kind::kLogits;
  d.stats = executor.stats(sampled.row, Filters{});
  return d;
}

// The largest probability; NaN if the row is invalid
template <class Executor>
SPECDEC_WALK double largest(Executor& executor, const Dist& d) {
  if (d.kind == Kind::kOneHot) return 1;
  return d.kind == Kind::kLogits && !d.row.repeats() ? exp(-double(d.stats.log_norm)) : executor.largest_prob(d);
}

// The threshold for d's entries (logits or probabilities) that have at least `share` times `largest`, the largest
// probability. NaN if `share` is NaN.
SPECDEC_HD float threshold_at(const Dist& d, double largest, double share) {
  if (share <= 0) return -HUGE_VALF;
  if (d.kind != Kind::kLogits) return float(share * largest);
  // If entries of one id add up, `largest` may exceed the probability of the largest entry.
  const double above = d.row.repeats() ? log(largest) + d.stats.log_norm : 0;
  return float(d.stats.max + above + log(share));
}

}  // namespace specdec

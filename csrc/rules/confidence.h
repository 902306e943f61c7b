// SPDX-License-Identifier: Apache-2.0
// How sure a model is: of its softmax at T = 1 without filters, whatever the law that is sampled from.
#pragma once

#include "../core/views.h"

namespace specdec {

// A row of probabilities speaks for itself, and so does a drafted token without a row.
SPECDEC_HD bool is_unscaled(const Dist& d) {
  return d.kind == Kind::kProbs || !d.row.data || (d.law.scale == 1 && d.law.cutoff == -FLT_MAX);
}

// Reads the row once if the law does not say it.
template <class Team>
SPECDEC_WALK Dist unscaled(Team& team, const Dist& sampled) {
  if (is_unscaled(sampled)) return sampled;
  Dist d = sampled;
  d.kind = Kind::kLogits;
  d.law = team.law(sampled.row, Filters{});
  return d;
}

// The largest probability; NaN if the row is no law.
template <class Team>
SPECDEC_WALK double largest(Team& team, const Dist& d) {
  if (d.kind == Kind::kOneHot) return 1;
  return d.kind == Kind::kLogits ? exp(-double(d.law.log_norm)) : team.largest_prob(d.row);
}

// The entry from which on a probability is at least `share` of the largest one; NaN for NaN.
SPECDEC_HD float cut_at(const Dist& d, double largest, double share) {
  if (share <= 0) return -HUGE_VALF;
  return d.kind == Kind::kLogits ? float(d.law.max + log(share)) : float(share * largest);
}

}  // namespace specdec

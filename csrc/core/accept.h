// SPDX-License-Identifier: Apache-2.0
// The acceptance test of speculative sampling (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2).
#pragma once

#include "macros.h"

namespace specdec {

// Rounding may put a probability slightly above one: in float16, at 1 + 2^-10.
constexpr double kMaxProb = 1.0 + 1e-3;

// Whether a token can have been drafted with probability q
SPECDEC_HD bool is_draft_prob(double q) { return q > 0 && q <= kMaxProb; }

// The q that a residual subtracts: clamped to 1, or 0 if q is not a probability
SPECDEC_HD double draft_prob(double q) { return is_draft_prob(q) ? (q < 1 ? q : 1) : 0; }

// Accepts with probability exactly min(1, p / q) if u is uniform in [0, 1). There is no division. The comparison is
// strict, so p = 0 rejects even if u = 0; NaN rejects too.
SPECDEC_HD bool accept(double p, double q, double u) { return is_draft_prob(q) && u * (q < 1 ? q : 1) < p; }

}  // namespace specdec

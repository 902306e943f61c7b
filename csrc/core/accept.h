// SPDX-License-Identifier: Apache-2.0
// The acceptance test of speculative sampling (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2).
#pragma once

#include "macros.h"

namespace specdec {

// Half-precision rows may round a probability slightly above one.
constexpr double kMaxProb = 1.0 + 1e-3;

// Whether a token can have been drafted with probability q
SPECDEC_HD bool is_draft_prob(double q) { return q > 0 && q <= kMaxProb; }

// The probability that a residual subtracts: q clamped to 1, or 0 if q is not a probability
SPECDEC_HD double draft_prob(double q) { return is_draft_prob(q) ? (q < 1 ? q : 1) : 0; }

// Accepts with probability exactly min(1, p / q). The comparison is strict, has no division, and is false for NaN.
SPECDEC_HD bool accept(double p, double q, double u) { return is_draft_prob(q) && u * (q < 1 ? q : 1) < p; }

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The acceptance test of speculative sampling (Leviathan 2023, Alg. 1; Chen 2023, Alg. 2).
#pragma once

#include "macros.h"

namespace specdec {

// Half-precision rows may round a probability slightly above one.
constexpr double kMaxProb = 1.0 + 1e-3;

// A drafted token whose q is not a probability was not drawn from q.
SPECDEC_HD bool is_draft_prob(double q) { return q > 0 && q <= kMaxProb; }

// What a residual takes away: of what is not a probability nothing, of a rounded one one.
SPECDEC_HD double draft_prob(double q) { return is_draft_prob(q) ? (q < 1 ? q : 1) : 0; }

// Probability exactly min(1, p / q): strict, no division; NaN compares false and rejects.
SPECDEC_HD bool accept(double p, double q, double u) { return is_draft_prob(q) && u * (q < 1 ? q : 1) < p; }

}  // namespace specdec

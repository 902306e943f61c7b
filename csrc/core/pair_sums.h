// SPDX-License-Identifier: Apache-2.0
// What an Executor tells of a pair of rows as a residual sees them.
#pragma once

#include "macros.h"

namespace specdec {

constexpr int kCandidates = 4;  // t looked at in one pass

// Total weights, added up in float64; NaN or 0 if a row is no law.
struct PairMass {
  double p, q;
};

// How far two laws are apart: TV = sum (p - q)+, the overlap sum min(p, q), and the entropy of each.
struct PairGap {
  double tv, overlap, entropy_p, entropy_q;
};

// Then there is clipped_sums(p, q, t, out): sum (p - t q)+ for each t. A term is rounded once and added to others in
// float32 three times at most, so no sum is off by more than 2^-22 of itself; it is 0 where t q >= p everywhere.

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Sums over a pair of rows, p and q, that an Executor computes. Probabilities count as in a residual (accept.h).
#pragma once

#include "macros.h"

namespace specdec {

constexpr int kCandidates = 4;  // values of t evaluated in one pass

// Total weights, summed in float64; NaN or 0 if a row is invalid
struct PairMass {
  double p, q;
};

// The distance of two distributions: TV = sum (p - q)+, the overlap sum min(p, q), and the entropy of each
struct PairGap {
  double tv, overlap, entropy_p, entropy_q;
};

// Executors also have clipped_sums(p, q, t, out), which computes sum (p - t q)+ for each t. A term is rounded once and
// takes part in at most three additions in float32, so a sum's relative error is at most 2^-22. The sum is exactly 0 if
// t q >= p everywhere.

}  // namespace specdec

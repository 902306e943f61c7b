// SPDX-License-Identifier: Apache-2.0
// Sums over a pair of rows: p of the target and q of the draft. An Executor computes them (on the CPU,
// cpu/row_executor.h). The probabilities of q count as draft_prob() of them (accept.h).
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

// Executors also have clipped_sums(p, q, t, out), which sets out[m] to the sum over ids of (p - t[m] q)+. A term is
// rounded once and takes part in at most three additions in float32, so a sum's relative error is about 2^-22 at most.
// The sum is exactly 0 if t[m] q >= p for every id.

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The rows of a chain on CUDA, of whose chunk statistics laws are made, and which of them are read.
#pragma once

#include "../../cuda/block_executor.cuh"
#include "../../cuda/dependent_launch.cuh"
#include "position.h"
#include "test_draft.h"

namespace specdec {

// The chunk statistics and laws of one side's rows, where the caller did not hand its laws over.
struct Reduced {
  RowStats* stats = nullptr;  // [positions]
  ChunkTable table;
  int blocks = 0;  // per row
};

struct Step {
  VerifyChain a;  // the stats of a scanned side point to its laws
  Reduced target, draft;
  float* residual = nullptr;     // [B, chunks]: chunk sums at the stop
  float* end_sums = nullptr;     // [B, chunks]: of the target's law behind the last draft
  int* stop = nullptr;           // [B]: G + 1 less the first position known to stop; 0: none yet
  DraftTest* stops = nullptr;    // [G+1, B]: what was found at positions that stop
  int* tested_blocks = nullptr;  // [B, G+1]: blocks done with a position
  int* summed = nullptr;         // [B]: blocks done with the chunk sums
  int per_warp = 1, residual_per_warp = 1, residual_blocks = 1;
};

SPECDEC_DEVICE bool greedy_target(const Step& s, int64_t b, int64_t i) {
  if (s.target.stats) return s.a.target.sampling[b].greedy();
  const Side& target = s.a.target;
  const int64_t start = s.a.start(b);
  return target.stats && target.has_row(start, b, i) && target.known_stats(start, b, i).scale == HUGE_VALF;
}

// Whether the rows of a position are read, if nothing before it stops, to make their laws.
SPECDEC_DEVICE bool reduces_target(const Step& s, int64_t start, int64_t b, int64_t i) {
  return s.target.stats && !s.a.gives_bonus(b, i) && s.a.target.has_row(start, b, i);
}
SPECDEC_DEVICE bool reduces_draft(const Step& s, int64_t start, int64_t b, int64_t i, bool tests) {
  const VerifyChain& a = s.a;
  return s.draft.stats && (tests ? a.has_draft(b, i) && !greedy_target(s, b, i) : reads_draft(a, b, i)) &&
         a.draft.has_row(start, b, i);
}

// Of this thread, which looks at some of the positions before i: whether the draft is known to end before it.
SPECDEC_DEVICE bool ends_before(const VerifyChain& a, int64_t b, int64_t i, int thread, int threads) {
  const int64_t g = a.drafted(b);
  bool ends = i > g;
#pragma unroll 1
  for (int64_t j = thread; j < i && j < g; j += threads) ends |= !a.has_draft(b, j);
  return ends;
}

}  // namespace specdec

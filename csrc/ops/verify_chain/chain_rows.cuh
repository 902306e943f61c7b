// SPDX-License-Identifier: Apache-2.0
// The rows of a chain on CUDA: blocks take parts of rows and leave chunk statistics, from which the rows' stats are
// made.
#pragma once

#include "../../cuda/block_executor.cuh"
#include "../../cuda/dependent_launch.cuh"
#include "../../cuda/list_entries.cuh"
#include "position.h"
#include "test_draft.h"

namespace specdec {

// The chunk statistics and stats of one side's rows, if the caller gave no stats
struct Reduced {
  RowStats* stats = nullptr;  // [positions]
  ChunkTable table;
  int blocks = 0;  // per row
};

struct Step {
  VerifyChain a;  // rows.stats of a reduced side are its Reduced::stats, but not in small batches
  Reduced target, draft;
  float* residual = nullptr;     // [B, chunks]: chunk sums of the residual at the stop
  float* end_sums = nullptr;     // [B, G+1, chunks]: chunk sums of the target; small batches only
  int* stop = nullptr;           // [B]: G + 1 - the first position known to stop; 0: none yet
  DraftTest* stops = nullptr;    // [G+1, B]: the test results of positions that stop
  int* tested_blocks = nullptr;  // [G+1, B]: blocks done with a position
  int* summed = nullptr;         // [B]: blocks done with the chunk sums
  int per_warp = 1, residual_per_warp = 1, residual_blocks = 1;
};

// Whether the target is greedy at position i
SPECDEC_DEVICE bool greedy_target(const Step& s, int64_t b, int64_t i) {
  if (s.target.stats) return s.a.target.sampling[b].greedy();
  const Rows& target = s.a.target;
  const int64_t start = s.a.start(b);
  return target.stats && target.has_row(start, b, i) && target.known_stats(start, b, i).greedy(target.memory.V);
}

// What a block does at a position. One thread makes it and leaves it in shared memory, since the pass over the rows has
// no registers to spare for it.
struct Part {
  int unit, b, i;  // unit: i * B + b
  int64_t start;
  bool reads[2];  // whether to read the row of the target, of the draft
  bool tests;     // whether the block that is last tests the draft
  Row row;        // the row that this block reads; V = 0: none
  float scale;
  ChunkTable table;
  int number;        // which part of the row
  RowStats laws[2];  // stats of the rows that were read
};

// The stats of a greedy row of a draft with ids hold the index of an entry. Puts the entry's id there instead, in both
// copies of the stats.
SPECDEC_APART void name_argmax(const Listed* row, RowStats* stats, RowStats* again) {
  *stats = *again = stats_by_id(row, *again);
}

// Makes the stats of the target's row (`which` 0) or the draft's (1) at the position of `part`. Called by all threads
// of the last block to finish there.
template <bool kFiltered>
SPECDEC_DEVICE void make_stats(const Rows& rows, const Reduced& reduced, int which, Part& part) {
  const int64_t b = part.b, index = rows.index(part.start, b, part.i), chunks = chunk_count(rows.memory.V);
  const RowStats stats = block_stats<kFiltered>(rows.at(part.start, b, part.i), rows.sampling.at<kFiltered>(b),
                                                reduced.table.row(index, chunks));
  if (threadIdx.x == 0) reduced.stats[index] = part.laws[which] = stats;
  if (kReadsIds && threadIdx.x == 0 && rows.ids)
    name_argmax(rows.ids.listed + index, reduced.stats + index, part.laws + which);
}

// Plans in `part` that the block reads part `number` of the row at position i.
template <bool kFiltered>
SPECDEC_DEVICE void take(const Rows& rows, const Reduced& reduced, int64_t b, int64_t i, int number, Part& part) {
  const Filters filters = rows.sampling.at<kFiltered>(b);
  const int64_t V = rows.memory.V, chunks = chunk_count(V);
  part.row = rows.at(part.start, b, i);
  part.scale = filters.scale();
  part.table = reduced.table.row(rows.index(part.start, b, i), chunks).under(filters, V);
  part.number = number;
}

// Whether the row of the target, or of the draft, at a position is read to make its stats, provided that nothing before
// it stops
SPECDEC_DEVICE bool reduces_target(const Step& s, int64_t start, int64_t b, int64_t i) {
  return s.target.stats && !s.a.gives_bonus(b, i) && s.a.target.has_row(start, b, i);
}
SPECDEC_DEVICE bool reduces_draft(const Step& s, int64_t start, int64_t b, int64_t i, bool tests) {
  const VerifyChain& a = s.a;
  return s.draft.stats && (tests ? a.has_draft(b, i) && !greedy_target(s, b, i) : reads_draft(a, b, i)) &&
         a.draft.has_row(start, b, i);
}

// Whether the draft ends before position i, as far as this thread sees. Each of `threads` threads looks at some of the
// positions before i; the draft ends if one of them returns true.
SPECDEC_DEVICE bool ends_before(const VerifyChain& a, int64_t b, int64_t i, int thread, int threads) {
  const int64_t g = a.drafted(b);
  bool ends = i > g;
#pragma unroll 1
  for (int64_t j = thread; j < i && j < g; j += threads) ends |= !a.has_draft(b, j);
  return ends;
}

// Plans what block `number` of position i does. Called by one thread. i must be at most a.drafted(b).
template <bool kFiltered>
SPECDEC_DEVICE void plan(const Step& s, int64_t b, int64_t i, int number, Part& part) {
  const VerifyChain& a = s.a;
  part.b = int(b), part.i = int(i);
  const int64_t start = part.start = a.start(b);
  part.tests = !a.by_rule(b);
  part.row.V = 0;
  part.reads[0] = reduces_target(s, start, b, i);
  part.reads[1] = reduces_draft(s, start, b, i, part.tests);
  const bool of_draft = number >= s.target.blocks;
  if (!part.reads[of_draft]) return;
  if (of_draft)
    take<kFiltered>(a.draft, s.draft, b, i, number - s.target.blocks, part);
  else
    take<kFiltered>(a.target, s.target, b, i, number, part);
}

// Calls f for the rows of both sides at a position of a request (cuda/views.cuh).
template <class F>
SPECDEC_DEVICE void each_view(const VerifyChain& a, int64_t unit, const F& f) {
  const int64_t b = unit % a.B, i = unit / a.B;
  if (!a.present.has(b)) return;
  const int64_t start = a.start(b);
#pragma unroll 1
  for (int side = 0; side < 2; ++side) {
    const Rows& rows = side ? a.draft : a.target;
    const int64_t there = start < 0 ? rows.per_request : a.drafted(b) + rows.extra;
    if ((rows.views || rows.ids) && i < there && rows.has_row(start, b, i))
      f(side, rows, rows.index(start, b, i), rows.as_stored(start, b, i), rows.ids_at(start, b, i), b, i);
  }
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// What a block of a chain's first launch does: its part of a position's rows, whose chunk statistics it leaves.
#pragma once

#include "looked_up.cuh"

namespace specdec {

// What a block does at a position: one thread finds it out, and it lies in shared memory, since the pass over the rows
// has no register to spare for it.
struct Part {
  int unit, b, i;
  int64_t start;
  bool reads[2];  // the rows of the target and of the draft are to be read
  bool tests;
  Row row;  // of this block; no entry where it reads none
  float scale;
  ChunkTable table;
  int number;  // which part of the row
  // Of the last block of a position
  LookedUp at;
  RowStats laws[2];  // that were made of those rows
};

template <bool kFiltered>
SPECDEC_DEVICE void make_stats(const Side& side, const Reduced& reduced, const Part& part, RowStats& law) {
  const int64_t b = part.b, index = side.index(part.start, b, part.i), chunks = chunk_count(side.rows.V);
  const RowStats stats = block_stats<kFiltered>(side.at(part.start, b, part.i), side.sampling.at<kFiltered>(b),
                                                reduced.table.row(index, chunks));
  if (threadIdx.x == 0) reduced.stats[index] = law = stats;
}

template <bool kFiltered>
SPECDEC_DEVICE void take(const Side& side, const Reduced& reduced, int64_t b, int64_t i, int number, Part& part) {
  const Filters filters = side.sampling.at<kFiltered>(b);
  const int64_t V = side.rows.V, chunks = chunk_count(V);
  part.row = side.at(part.start, b, i);
  part.scale = filters.scale();
  part.table = reduced.table.row(side.index(part.start, b, i), chunks).under(filters, V);
  part.number = number;
}

// What the test of a draft will look up, one after another, once the rows are done
SPECDEC_DEVICE void prefetch_test(const VerifyChain& a, int64_t start, int64_t b, int64_t i) {
  if (a.uniforms)
    prefetch(a.uniforms + b * (a.G + 1) + i);
  else if (a.seed)
    prefetch(a.seed.address(b)), prefetch(a.offset.address(b));
  const Side& q = a.draft;
  const int64_t d = a.draft_token(b, i);
  if (q.is_one_hot(start, b, i) || !q.has_row(start, b, i) || d >= q.rows.V) return;
  prefetch(q.at(start, b, i).at(d));
  if (q.stats && !q.stats_of_positions) prefetch(q.stats + 4 * q.number(start, b, i));
}

template <bool kFiltered>
SPECDEC_DEVICE void plan(const Step& s, int64_t b, int64_t i, int number, Part& part) {
  const VerifyChain& a = s.a;
  part.b = int(b), part.i = int(i);
  const int64_t start = part.start = a.start(b);
  part.tests = !a.by_rule(b);
  part.row.V = 0;
  part.reads[0] = reduces_target(s, start, b, i);
  part.reads[1] = reduces_draft(s, start, b, i, part.tests);
  if (number == 0 && part.tests && a.has_draft(b, i)) prefetch_test(a, start, b, i);
  const bool of_draft = number >= s.target.blocks;
  if (!part.reads[of_draft]) return;
  if (of_draft)
    take<kFiltered>(a.draft, s.draft, b, i, number - s.target.blocks, part);
  else
    take<kFiltered>(a.target, s.target, b, i, number, part);
}

}  // namespace specdec

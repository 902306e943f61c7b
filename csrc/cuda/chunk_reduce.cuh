// SPDX-License-Identifier: Apache-2.0
// Launches in which blocks share rows: which block does what, and what it leaves of each chunk.
#pragma once

#include "thread_block.cuh"
#include "../core/filters.h"

namespace specdec {

// Block `part` of a row: each of its warps takes per_warp chunks in turn.
template <class F>
SPECDEC_DEVICE void for_chunks(int64_t chunks, int part, int per_warp, const F& f) {
  const int first = part * per_warp * kWarps, behind = first + per_warp * kWarps;  // a row has at most 2^14
  const int end = behind < int(chunks) ? behind : int(chunks);
  for (int c = first + int(threadIdx.x) / kLanes; c < end; c += kWarps) f(c);
}

// What a pass over rows leaves of their chunks.
struct ChunkTable {
  float* max = nullptr;      // [rows, chunks]
  float* sum = nullptr;      // [rows, chunks]
  float* samples = nullptr;  // [rows, chunks, 32], where a filter may ask for them

  SPECDEC_HD ChunkTable row(int64_t index, int64_t chunks) const {
    return {max + index * chunks, sum + index * chunks, samples ? samples + index * chunks * kLanes : nullptr};
  }
};

// Room for the tables of `rows` rows: ask for it, and take it once the scratch is allocated.
class TableRoom {
 public:
  TableRoom(Scratch& scratch, int64_t rows, int64_t chunks, bool samples)
      : max_(scratch.ask<float>(rows * chunks)),
        sum_(scratch.ask<float>(rows * chunks)),
        samples_(samples ? scratch.ask<float>(rows * chunks * kLanes) : 0),
        has_samples_(samples) {}
  ChunkTable in(const Scratch& scratch) const {
    return {scratch.at<float>(max_), scratch.at<float>(sum_), has_samples_ ? scratch.at<float>(samples_) : nullptr};
  }

 private:
  size_t max_, sum_, samples_;
  bool has_samples_;
};

// Of the row that is number `index` in the table
SPECDEC_DEVICE void reduce_chunks(const Row& row, const Filters& filters, int part, int per_warp,
                                  const ChunkTable& table, int64_t index) {
  const float scale = filters.scale();
  const bool samples = filters.any(row.V) && table.samples;
  const int64_t first = index * chunk_count(row.V);
  for_chunks(chunk_count(row.V), part, per_warp, [&](int64_t c) {
    const int64_t at = first + c;
    const ChunkStats stats = chunk_stats(row, c, scale, samples ? table.samples + at * kLanes : nullptr);
    if (threadIdx.x % kLanes == 0) __stcg(table.max + at, stats.max), __stcg(table.sum + at, stats.sum);
  });
}

// Chunks of p whose maximum lies below its cutoff weigh nothing and are not read; chunk_max may be null.
SPECDEC_DEVICE bool reaches(const Dist& p, const float* chunk_max, int64_t c) {
  return !chunk_max || p.kind != Kind::kLogits || __ldcg(chunk_max + c) >= p.stats.cutoff;
}

SPECDEC_DEVICE void sum_chunks(const Dist& p, const Dist& q, int part, int per_warp, const float* chunk_max,
                               float* sum) {
  for_chunks(chunk_count(p.row.V), part, per_warp, [&](int64_t c) {
    const float s = reaches(p, chunk_max, c) ? chunk_sum(p, q, c) : 0.0f;
    if (threadIdx.x % kLanes == 0) __stcg(sum + c, s);
  });
}

// Several blocks share each of N rows, and the last one to be done goes on alone.
struct RowGrid {
  int* arrived = nullptr;  // [N]
  int blocks = 1;          // per row
  int per_warp = 1;

  SPECDEC_DEVICE int64_t row() const { return blockIdx.x / blocks; }
  SPECDEC_DEVICE int part() const { return int(blockIdx.x % blocks); }
  SPECDEC_DEVICE bool last() const { return last_block(arrived + row(), blocks); }
};

// The room that a grid over N rows of V entries and its tables take, beside what else the launch asks for.
class RowGridRoom {
 public:
  RowGridRoom(Scratch& scratch, int64_t N, int64_t V, bool samples)
      : N_(N), chunks_(chunk_count(V)), arrived_(scratch.ask<int>(N)), table_(scratch, N, chunks_, samples) {}

  void take(const char* op, const Scratch& scratch, cudaStream_t stream, RowGrid& grid, ChunkTable& table) const {
    const int per_warp = chunks_per_warp(N_, chunks_);
    grid = {scratch.at<int>(arrived_), blocks_per_row(chunks_, per_warp), per_warp};
    table = table_.in(scratch);
    check_cuda(op, cudaMemsetAsync(grid.arrived, 0, size_t(N_) * sizeof(int), stream));
  }

 private:
  int64_t N_, chunks_;
  size_t arrived_;
  TableRoom table_;
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// The draws from one row by one block
#pragma once

#include "../../cuda/block_executor.cuh"
#include "../../cuda/list_entries.cuh"
#include "sample.h"

namespace specdec {

struct Draws {
  Sample a;
  ChunkTable tables;
  RowGrid grid;

  SPECDEC_DEVICE ChunkTable table(int64_t n) const { return tables.row(n, chunk_count(a.logits.V)); }
};

// Launches the draws from rows by id. Their stats are given, or another launch has made them from the stored entries.
void launch_draws_by_id(const Draws& s, cudaStream_t stream);

namespace {

// The stats of a row of logits without its removed ids. Rarely run, so not inlined. `ids` is as in
// chunk_stats_without().
SPECDEC_APART RowStats stats_of_rest(Row row, RowStats stats, Few removed, ChunkTable table, const Listed* ids) {
  Dist p;
  p.kind = Kind::kLogits, p.row = row, p.stats = stats;
  reduce_chunks_without(p, removed, 0, turns(chunk_count(row.V), 1), table, ids);
  __syncthreads();
  return block_stats_without(p, table, table.sum);
}

// A BlockExecutor that draws repeatedly from one row. exclude() takes the last drawn id out of its sums.
class SampleExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE SampleExecutor(const Draws& s, int64_t n, const RowStats& stats, Held held)
      : BlockExecutor(stats, s.table(n).sum, s.a.stats_in ? nullptr : s.table(n).max, held), s_(s), n_(n) {}

  // Adds up the chunk sums once more: over many draws there is no register free to keep the result of sum().
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist& q, double v) const {
    return block_draw(block_choose(p.row.V, v, sum_),
                      [&](const ThreadRun& at, auto& w, const auto& meanwhile) { weigh_left(p, q, at, w, meanwhile); });
  }

  // Removes the last drawn id from the sums of p. The sum of its chunk is computed anew, not by a subtraction, since
  // what is left may be far smaller than what was removed. Returns the distribution of the next draw, of kind kNothing
  // if nothing is left.
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Few& removed) {
    removed_ = removed;
    __syncthreads();
    const int64_t chunk = removed[removed.n - 1] / kChunk;
    float w[ThreadRun::kEntries];
    weigh_left(p, Dist{}, thread_run(chunk), w, [] {});
    double own = 0;
    for (const float x : w) own += x;
    const double rest = block_scan(own).total;
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
    const double total = block_sum_of(p.row.V, sum_);
    if (total >= kEnough) return p;
    Dist left = p;
    left.stats = stats_of_rest(p.row, p.stats, removed, s_.table(n_), nullptr);
    return left.valid() ? left : Dist{};
  }

 private:
  // The weights without the ids that were drawn before
  template <class Meanwhile>
  SPECDEC_DEVICE void weigh_left(const Dist& p, const Dist& q, const ThreadRun& at, float (&w)[ThreadRun::kEntries],
                                 const Meanwhile& meanwhile) const {
    weigh(p, q, at, w, meanwhile);
#pragma unroll 1
    for (int64_t i = 0; i < removed_.n; ++i) {
      const int64_t gone = removed_[i] - at.first;
#pragma unroll
      for (int r = 0; r < ThreadRun::kEntries; ++r) w[r] = gone == r ? 0.0f : w[r];
    }
  }

  const Draws& s_;
  const int64_t n_;
  Few removed_;
};

}  // namespace
}  // namespace specdec

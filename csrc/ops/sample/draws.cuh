// SPDX-License-Identifier: Apache-2.0
// The draws from one row by one block
#pragma once

#include "../../cuda/block_executor.cuh"
#include "../../cuda/list_entries.cuh"
#include "sample.h"

namespace specdec {
namespace {

struct Draws {
  Sample a;
  ChunkTable tables;
  RowGrid grid;

  SPECDEC_DEVICE ChunkTable table(int64_t n) const { return tables.row(n, chunk_count(a.logits.V)); }
};

// The stats of a row of logits without its removed ids. Rarely run, so not inlined.
// `ids`: those of its entries, or null.
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

  // Adds the chunk sums up again: over many draws no register is free to keep what sum() found.
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist& q, double v) const {
    return block_draw(block_choose(p.row.V, v, sum_),
                      [&](const ThreadRun& at, auto& w, const auto& meanwhile) { weigh_left(p, q, at, w, meanwhile); });
  }

  // Removes the last drawn id from the sums of p. Its chunk is summed again, since what is left of it may be far
  // smaller than what was removed. Returns the distribution of the next draw, of kind kNothing if nothing is left.
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

// A SampleExecutor for a row by id. Draws are from the row as its entries lie; an id that was drawn loses all its
// entries.
class ListedExecutor : public BlockExecutor {
 public:
  SPECDEC_DEVICE ListedExecutor(const Draws& s, int64_t n, const RowStats& stats)
      : BlockExecutor(stats, s.table(n).sum, nullptr, kPlain), s_(s), n_(n) {}

  SPECDEC_DEVICE double sum(const Dist&, const Dist&) const { return block_sum_of(s_.a.logits.V, sum_); }
  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const {
    const Row lying = row.as_it_lies();
    const int64_t at = BlockExecutor::argmax_finite(lying);
    return fabsf(lying.entry(at)) < HUGE_VALF ? id_at(at) : 0;
  }
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist&, double v) const {
    return id_at(
        block_draw(block_choose(s_.a.logits.V, v, sum_), [&](const ThreadRun& at, auto& w, const auto& meanwhile) {
          meanwhile();
          weigh_left(p, at, w);
        }));
  }

  // As SampleExecutor::exclude()
  SPECDEC_DEVICE Dist exclude(const Dist& p, const Few& removed) {
    removed_ = removed;
    __syncthreads();
    const int64_t id = removed[removed.n - 1];
    int64_t last = -1;
#pragma unroll 1
    for (int i = first_place(row(), int(id)); i < row().n && row().places[i].id == id; ++i) {
      const int64_t chunk = clamped(row().places[i].at, row().k - 1) / kChunk;
      if (chunk != last) sum_again(p, chunk);
      last = chunk;
    }
    if (block_sum_of(s_.a.logits.V, sum_) >= kEnough) return p;
    Dist left = p;
    left.stats = stats_of_rest(p.row.as_it_lies(), p.stats, removed, s_.table(n_), &row());
    return left.valid() ? left : Dist{};
  }

 private:
  SPECDEC_DEVICE const Listed& row() const { return s_.a.logits.ids.listed[n_]; }
  SPECDEC_DEVICE int64_t id_at(int64_t at) const { return clamped(row().of(at), kIdsEnd - 1); }

  SPECDEC_DEVICE void sum_again(const Dist& p, int64_t chunk) const {
    __syncthreads();
    float w[ThreadRun::kEntries];
    weigh_left(p, thread_run(chunk), w);
    double own = 0;
    for (const float x : w) own += x;
    const double rest = block_scan(own).total;
    if (leads()) __stcg(sum_ + chunk, float(rest));
    __syncthreads();
  }

  // The weights of entries without the ids that were drawn before
  SPECDEC_DEVICE void weigh_left(const Dist& p, const ThreadRun& at, float (&w)[ThreadRun::kEntries]) const {
    at.load(p.row.as_it_lies(), -HUGE_VALF, w);
    to_target_weights(p, w);
#pragma unroll 1
    for (int64_t i = 0; i < removed_.n; ++i) {
      const int64_t gone = removed_[i];
#pragma unroll
      for (int r = 0; r < ThreadRun::kEntries; ++r) w[r] = row().is_at(gone, at.id(r)) ? 0.0f : w[r];
    }
  }

  const Draws& s_;
  const int64_t n_;
  Few removed_;
};

}  // namespace
}  // namespace specdec

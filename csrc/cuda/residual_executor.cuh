// SPDX-License-Identifier: Apache-2.0
// The CUDA Executor for walks that visit many rows. A cluster of blocks shares every step over V, chunk by chunk. Each
// block makes the whole walk, from the common results, so no bit of a result depends on the number of blocks.
#pragma once

#include "block_executor.cuh"
#include "../core/residual.h"
#include "pair_search.cuh"

namespace specdec {

// How many ids `id` lies after the first entry of `at`, if that is less than kChunk, else -1. To be compared with
// step_of(r): for comparisons with at.id(r), the compiler would keep the id of every entry in registers.
template <class At>
SPECDEC_DEVICE int step_to(const At& at, int64_t id) {
  static_assert(At::kSpan == kChunk || At::kEntries <= kGroup,
                "entry r of a run is step_of(r) in its first group only");
  const int64_t steps = id - at.id(0);
  return steps >= 0 && steps < kChunk ? int(steps) : -1;
}

// The weights that a residual subtracts for q; 0 for removed ids and beyond the row
template <class At>
SPECDEC_DEVICE void draft_weights(const Dist& q, const Few& removed, const At& at, float (&y)[At::kEntries]) {
  constexpr int N = At::kEntries;
  load(q, at, pad_of(q), y);
  to_draft_weights(q, y);
#pragma unroll 1
  for (int64_t i = 0; i < removed.n; ++i) {
    const int gone = step_to(at, number_in(q.row, removed[i]));
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if (step_of(r) == gone) y[r] = 0;
    }
  }
}

// Calls f(part, weights of the part) for the parts of `at`. Where rows have ids, a part is one group, since f has no
// registers for more; else it is all of `at`.
template <int N, class F>
SPECDEC_DEVICE void for_parts(const GroupsOf<N>& at, float (&w)[N * kGroup], const F& f) {
  if constexpr (kReadsIds) {
#pragma unroll
    for (int j = 0; j < N; ++j)
      f(GroupsOf<1>{at.chunk, at.first + j}, *reinterpret_cast<float (*)[kGroup]>(w + j * kGroup));
  } else {
    f(at, w);
  }
}
template <int N, class F>
SPECDEC_DEVICE void for_parts(const RunOf<N>& at, float (&w)[N], const F& f) {
  f(at, w);
}

// Applies the subtractions of a residual to the weights w.
template <class At>
SPECDEC_DEVICE void subtract(const Residual& residual, const At& at, float (&w)[At::kEntries]) {
  constexpr int N = At::kEntries;
#pragma unroll 1
  for (int64_t j = 0; j < residual.n; ++j) {
    const Subtraction& subtraction = residual.subtractions[j];
    const float m = subtraction.m;
#pragma unroll
    for (int r = 0; r < N; ++r) w[r] *= m;
    if (subtraction.q.kind == Kind::kOneHot) {
      const int hot = step_to(at, subtraction.q.hot);
#pragma unroll
      for (int r = 0; r < N; ++r) {
        if (step_of(r) == hot) w[r] *= 0;
      }
    } else if (subtraction.q.kind != Kind::kNothing && at.begin() < subtraction.q.row.V) {
      const float s = subtraction.s, cap = subtraction.cap;
      for_parts(at, w, [&](const auto& part, auto& x) {
        constexpr int kEntries = std::decay_t<decltype(part)>::kEntries;
        float y[kEntries];
        draft_weights(subtraction.q, removed_by(residual.subtractions, j), part, y);
#pragma unroll
        for (int r = 0; r < kEntries; ++r) x[r] = subtracted_weight(x[r], y[r], s, cap);
      });
    }
  }
}

// The weights of a residual; 0 beyond the row of p. p must have a row.
template <class At>
SPECDEC_DEVICE void weigh(const Residual& residual, const At& at, float (&w)[At::kEntries]) {
  at.load(residual.p.row, pad_of(residual.p), w);
  to_target_weights(residual.p, w);
  subtract(residual, at, w);
}

// Sums the weights w that weigh(at, w) computes. The blocks of the cluster write the sums of chunks to `sums` [chunks],
// and every thread gets the total.
template <class Weigh>
SPECDEC_DEVICE double cluster_sum_over(int64_t V, float* sums, const Weigh& weigh) {
  const int64_t chunks = chunk_count(V);
  for_chunks(chunks, cluster_rank(), turns(chunks, cluster_size()), [&](int64_t c) {
    float sum[2] = {0, 0};
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kPairs) {
      float w[kPairs * kGroup];
      weigh(GroupsOf<kPairs>{c, first}, w);
#pragma unroll
      for (int r = 0; r < kPairs * kGroup; ++r) sum[r % 2] += w[r];
    }
    const float all = warp_sum(sum[0] + sum[1]);
    if (threadIdx.x % kLanes == 0) __stcg(sums + c, all);
  });
  cluster_sync();
  return block_sum_of(V, sums);
}

// The memory that a launch gives its executors. A cluster has two tables of chunk statistics.
struct ExecutorTables {
  ChunkTable of_clusters;      // [2 * clusters]: passes alternate, since late threads may still read the last one
  float* of_blocks = nullptr;  // [blocks, chunks]: chunk sums that each block makes with a row's stats
  int64_t chunks = 0;          // of the widest row
  bool keeps_pairs = false;    // whether the weights of a pair fit in shared memory
};

// Reserves the ExecutorTables of a launch in its scratch, for clusters of this shape and rows of at most V entries.
class ExecutorRoom {
 public:
  ExecutorRoom(Scratch& scratch, int64_t clusters, const ClusterShape& shape, int64_t V, bool filters)
      : chunks_(chunk_count(V)),
        tables_(scratch, 2 * clusters, chunks_, filters),
        own_(scratch.ask<float>(shape.blocks(clusters) * chunks_)),
        keeps_(shape.keeps) {}
  ExecutorTables in(const Scratch& scratch) const {
    return {tables_.in(scratch), scratch.at<float>(own_), chunks_, keeps_};
  }

 private:
  int64_t chunks_;
  TableRoom tables_;
  size_t own_;
  bool keeps_;
};

// The steps over V. A walk needs each of them in several places. They are not inlined, so a kernel has one copy of
// each.
template <bool kFiltered>
SPECDEC_APART RowStats step_stats(Row row, Filters filters, ChunkTable table, float* sums) {
  const int in_turn = turns(chunk_count(row.V), cluster_size());
  reduce_chunks<kFiltered>(row, filters.scale(), cluster_rank(), in_turn, table.under(filters, row.V));
  cluster_sync();
  return block_stats<kFiltered>(row, filters, table, sums);
}
// The same for a row that may be by id. A function of its own: the one above has no register for such a row.
template <bool kFiltered>
SPECDEC_APART RowStats step_stats_by_id(Row row, Filters filters, ChunkTable table, float* sums) {
  const RowStats stats = step_stats<kFiltered>(row.as_stored(), filters, table, sums);
  return row.is_listed() ? stats_by_id(row.listed(), stats) : stats;
}
template <bool kFiltered>
SPECDEC_DEVICE RowStats cluster_stats(Row row, Filters filters, ChunkTable table, float* sums) {
  if constexpr (kReadsIds) {
    return step_stats_by_id<kFiltered>(row, filters, table, sums);
  } else {
    return step_stats<kFiltered>(row, filters, table, sums);
  }
}

SPECDEC_APART double step_sum(Residual residual, float* sums) {
  return cluster_sum_over(residual.p.row.V, sums, [&](const auto& at, auto& w) { weigh(residual, at, w); });
}

SPECDEC_APART RowStats step_stats_without(Dist q, Few removed, ChunkTable table, float* sums) {
  reduce_chunks_without(q, removed, cluster_rank(), turns(chunk_count(q.row.V), cluster_size()), table);
  cluster_sync();
  return block_stats_without(q, table, sums);
}

SPECDEC_APART double step_mass_without(Dist q, Few removed, float* sums) {
  return cluster_sum_over(q.row.V, sums, [&](const auto& at, auto& w) { draft_weights(q, removed, at, w); });
}

SPECDEC_APART int64_t step_draw(Residual residual, double v, const float* sums) {
  return block_draw(block_choose(residual.p.row.V, v, sums), [&](const auto& at, auto& w, const auto& meanwhile) {
    meanwhile();
    weigh(residual, at, w);
  });
}

SPECDEC_APART PairMass step_masses(Dist p, Dist q, PairPass pass) { return pair_masses(DistWeights{p}, q, pass); }

SPECDEC_APART void step_clipped_sums(Dist p, Dist q, float4 t, PairPass pass) {
  leave_clipped_sums(DistWeights{p}, q, {t.x, t.y, t.z, t.w}, pass);
}

// Computes stats of rows, and sums and draws from residuals, by a cluster of blocks. A residual may have any number of
// removed ids and subtracted distributions.
class ResidualExecutor : public BlockSearch {
 public:
  static constexpr bool kMixes = false, kMakesRuleDists = true;

  // shared: dynamic shared memory
  SPECDEC_DEVICE ResidualExecutor(const ExecutorTables& tables, char* shared)
      : tables_(tables.of_clusters.row(2 * cluster_index(), tables.chunks)),
        own_(tables.of_blocks + blockIdx.x * tables.chunks),
        chunks_(tables.chunks),
        pair_tables_(shared, tables.keeps_pairs) {}

  // leads() is true in the one thread that writes results, keeps() in the thread of each block that writes to the
  // block's memory.
  SPECDEC_DEVICE bool leads() const { return cluster_rank() == 0 && threadIdx.x == 0; }
  SPECDEC_DEVICE bool keeps() const { return threadIdx.x == 0; }
  SPECDEC_DEVICE int thread() const { return cluster_rank() * kThreads + int(threadIdx.x); }
  SPECDEC_DEVICE int threads() const { return cluster_size() * kThreads; }
  SPECDEC_DEVICE void sync() const { __syncthreads(); }

  // For a row of logits without filters and without ids that is not greedy, this also leaves the chunk sums of its
  // distribution, so that sum() and draw() can use them.
  template <bool kFiltered = true>
  SPECDEC_DEVICE RowStats stats(const Row& row, const Filters& filters) {
    const RowStats stats = cluster_stats<kFiltered>(row, filters, next_table(), own_);
    sums_ = own_;
    const bool holds = !filters.any(row.V) && !filters.greedy() && !row.is_listed();
    held_ = holds ? row.id().data : nullptr, held_norm_ = stats.log_norm;
    return stats;
  }

  // The total weight of a residual. Leaves the chunk sums for draw().
  SPECDEC_DEVICE double sum(const Residual& residual) {
    if (holds(residual)) return block_sum_of(residual.p.row.V, sums_);
    return step_sum(residual, next_sums());
  }

  // For a row without its removed ids: stats_without() makes the stats of what is left of a row of logits (see
  // block_stats_without), and mass_without() returns the total weight of what is left of any row.
  SPECDEC_DEVICE RowStats stats_without(const Dist& q, const Few& removed) {
    held_ = nullptr, sums_ = own_;
    return step_stats_without(q, removed, next_table(), own_);
  }
  SPECDEC_DEVICE double mass_without(const Dist& q, const Few& removed) {
    return step_mass_without(q, removed, next_sums());
  }

  SPECDEC_DEVICE int64_t draw(const Residual& residual, double v) const { return step_draw(residual, v, sums_); }

  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const { return block_argmax_finite(row); }

  // p must have no subtractions. clipped_sums() is for the pair that masses() was last called for.
  SPECDEC_DEVICE PairMass masses(const Residual& p, const Dist& q) { return step_masses(p.p, q, pair_tables_.next()); }
  SPECDEC_DEVICE void clipped_sums(const Residual& p, const Dist& q, const float (&t)[kCandidates],
                                   double (&out)[kCandidates]) {
    const PairPass pass = pair_tables_.next();
    step_clipped_sums(p.p, q, make_float4(t[0], t[1], t[2], t[3]), pass);
    totals_of(*pass.table, out);
  }

 protected:
  // Whether sums_ holds the chunk sums of this residual: of p alone, without a cutoff. Such distributions of one row
  // are the same if their log_norm is.
  SPECDEC_DEVICE bool holds(const Residual& residual) const {
    const Dist& p = residual.p;
    const bool same = held_ == p.row.id().data && held_norm_ == p.stats.log_norm && p.stats.cutoff == -FLT_MAX;
    return same && residual.n == 0 && p.kind == Kind::kLogits && !residual.mixture;
  }

  SPECDEC_DEVICE ChunkTable next_table() {
    turn_ ^= 1;
    return tables_.row(turn_, chunks_);
  }
  // Where the next pass writes its chunk sums
  SPECDEC_DEVICE float* next_sums() {
    held_ = nullptr;
    return sums_ = next_table().sum;
  }

  const ChunkTable tables_;  // two of them
  float* const own_;
  const int64_t chunks_;
  PairTables pair_tables_;
  int turn_ = 0;
  float* sums_ = nullptr;       // chunk sums of the last pass, for draw()
  const void* held_ = nullptr;  // the row of logits whose distribution without a cutoff has its sums in sums_, or null
  float held_norm_ = 0;         // the log_norm of that distribution
};

}  // namespace specdec

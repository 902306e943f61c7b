// SPDX-License-Identifier: Apache-2.0
// For launches in which blocks share rows: which block takes which chunks, and what it computes for each of them.
#pragma once

#include "logit_histogram.cuh"
#include "special_chunks.cuh"
#include "weights.cuh"
#include "../core/filters.h"

namespace specdec {

// Calls f(c) for the chunks of block `part` of a row. Each of the block's warps takes up to per_warp chunks, one after
// another.
template <class F>
SPECDEC_DEVICE void for_chunks(int64_t chunks, int part, int per_warp, const F& f) {
  const int first = part * per_warp * kWarps, behind = first + per_warp * kWarps;
  const int end = behind < int(chunks) ? behind : int(chunks);
#pragma unroll 1
  for (int c = first + int(threadIdx.x) / kLanes; c < end; c += kWarps) f(c);
}
// Calls f(c) for one chunk, in the warp that for_chunks() gives it to.
template <class F>
SPECDEC_DEVICE void for_chunk(int c, int part, int per_warp, const F& f) {
  if (c / (per_warp * kWarps) == part && c % kWarps == int(threadIdx.x) / kLanes) f(c);
}

// The adjacent entries that each thread takes if a whole block works on one chunk
using ThreadRun = RunOf<kChunk / kThreads>;
SPECDEC_DEVICE ThreadRun thread_run(int64_t chunk) {
  return {chunk * kChunk + int64_t(threadIdx.x) * ThreadRun::kEntries};
}

// How many chunks each warp takes if `blocks` blocks share a row
SPECDEC_HD int turns(int64_t chunks, int blocks) { return (int(chunks) + kWarps * blocks - 1) / (kWarps * blocks); }

// Whether each lane leaves its largest entry of every chunk of a row, for top-k. The k-th largest of these is a lower
// bound of the row's k-th largest logit, since at least k logits reach it. This needs a k that is small enough for a
// block's shared memory and for the number of lanes. Otherwise a lane leaves any one of its entries. These are a sample
// of the row, which shows where top-p's mass lies.
SPECDEC_HD bool by_largest(const Filters& filters, int64_t V) {
  const int64_t chunks = chunk_count(V), k = filters.top_k;
  return filters.top_k_on(V) && k <= kBins && k <= chunks * kLanes / 4 && (k <= chunks || chunks * kLanes <= kFew);
}

// The results of a pass over rows for each of their chunks
struct ChunkTable {
  float* max = nullptr;    // [rows, chunks]
  float* sum = nullptr;    // [rows, chunks]
  float* lanes = nullptr;  // [rows, chunks, 32]: an entry of each lane, if a filter may need it
  bool largest = false;    // whether that entry is the lane's largest

  SPECDEC_HD ChunkTable row(int64_t index, int64_t chunks) const {
    return {max + index * chunks, sum + index * chunks, lanes ? lanes + index * chunks * kLanes : nullptr};
  }
  // The table of a row with these filters
  SPECDEC_HD ChunkTable under(const Filters& filters, int64_t V) const {
    return {max, sum, filters.any(V) ? lanes : nullptr, by_largest(filters, V)};
  }
  SPECDEC_DEVICE LaneEntries entries(int c) const { return {lanes, c, largest}; }
};

// Reserves the tables of `rows` rows; in() returns them once the scratch is allocated.
class TableRoom {
 public:
  TableRoom(Scratch& scratch, int64_t rows, int64_t chunks, bool filters)
      : max_(scratch.ask<float>(rows * chunks)),
        sum_(scratch.ask<float>(rows * chunks)),
        lanes_(filters ? scratch.ask<float>(rows * chunks * kLanes) : 0),
        has_lanes_(filters) {}
  ChunkTable in(const Scratch& scratch) const {
    return {scratch.at<float>(max_), scratch.at<float>(sum_), has_lanes_ ? scratch.at<float>(lanes_) : nullptr};
  }

 private:
  size_t max_, sum_, lanes_;
  bool has_lanes_;
};

// Writes the statistics of the chunks of block `part` to `table`, the table of this row.
template <bool kFiltered>
SPECDEC_DEVICE void reduce_chunks(const Row row, float scale, int part, int per_warp, const ChunkTable table) {
  const int whole = whole_chunks(row);
  const auto entries = [&](int c) { return kFiltered ? table.entries(c) : LaneEntries{}; };
  const auto put = [&](int c, const ChunkStats& stats) {
    if (threadIdx.x % kLanes == 0) __stcg(table.max + c, stats.max), __stcg(table.sum + c, stats.sum);
  };
  with_dtype(row.dtype, [&](auto type) {
    for_chunks(whole, part, per_warp,
               [&](int c) { put(c, whole_chunk_stats<decltype(type)::value>(row, c, scale, entries(c))); });
  });
  for_chunks(chunk_count(row.V), part, per_warp, [&](int c) {
    if (c >= whole) put(c, chunk_stats(row, c, scale, entries(c)));
  });
}

// Whether chunk c of p may have a logit that reaches the cutoff. Other chunks weigh nothing and are not read. If
// chunk_max is null, all chunks may.
SPECDEC_DEVICE bool reaches(const LogitWeights& p, const float* chunk_max, int c) {
  return !chunk_max || p.cutoff == -FLT_MAX || __ldcg(chunk_max + c) >= p.cutoff;
}
SPECDEC_DEVICE bool reaches(const ProbWeights&, const float*, int) { return true; }
SPECDEC_DEVICE bool reaches(const Dist& p, const float* chunk_max, int c) {
  return p.kind != Kind::kLogits || reaches(LogitWeights(p), chunk_max, c);
}

// Whether q has a row in which entry v is that of id v
SPECDEC_DEVICE bool has_dense_row(const Dist& q) { return has_row(q) && !q.row.is_listed(); }

// How many leading chunks of a pair grouped_chunk_sum() can sum whole. Both rows must be logits of one dtype, or
// float32 probabilities.
SPECDEC_DEVICE int whole_chunks(const Dist& p, const Dist& q) {
  if (p.kind == Kind::kProbs && p.row.dtype != kFloat32) return 0;
  const int whole = whole_chunks(p.row);
  if (!has_dense_row(q)) return whole;
  if (q.kind != p.kind || q.row.dtype != p.row.dtype) return 0;
  const int of_q = whole_chunks(q.row);
  return of_q < whole ? of_q : whole;
}
// Like whole_chunks(), but also counts the last chunk if it is not whole and grouped_chunk_sum() can sum it too; the
// result is then the number of all chunks. For that V must be a multiple of kGroup, and both rows must be aligned, of
// one length, and have at least one whole chunk.
SPECDEC_DEVICE int grouped_chunks(const Dist& p, const Dist& q) {
  const int whole = whole_chunks(p, q);
  const bool all = p.row.V / kChunk == whole && p.row.V % kGroup == 0 && aligned(p.row) && whole > 0 &&
                   (!has_dense_row(q) || q.row.V == p.row.V);
  return all ? int(chunk_count(p.row.V)) : whole;
}

// Calls f with the dtype of a pair that has whole_chunks(), and the weights of p and of q.
template <class F>
SPECDEC_DEVICE void with_weights(const Dist& p, const Dist& q, const F& f) {
  if (p.kind == Kind::kProbs)
    f(std::integral_constant<DType, kFloat32>(), ProbWeights(p), ProbWeights(q));
  else
    with_dtype(p.row.dtype, [&](auto type) { f(type, LogitWeights(p), LogitWeights(q)); });
}

// Adds the chunks in which q, a row by id, has an entry. Called by all threads of a block.
SPECDEC_APART void add_listed(const Listed* q, int chunks, SpecialChunks* to) {
  for (int c = threadIdx.x; c < chunks; c += kThreads) {
    if (reaches(*q, c * kChunk, (c + 1) * kChunk)) to->add_from_any_warp(c);
  }
  __syncthreads();
}

// The chunks of (p - q)+ that a loop over whole chunks cannot sum: the one that holds the token of a one-hot q, and
// those in which a q by id has an entry. Called by all threads of a block.
SPECDEC_DEVICE SpecialChunks& special_chunks(const Dist& p, const Dist& q) {
  __shared__ Uninitialised<SpecialChunks> shared;
  shared.get().make(chunk_count(p.row.V), q.kind == Kind::kOneHot ? int(q.hot / kChunk) : -1);
  if (has_row(q) && q.row.is_listed()) add_listed(q.row.listed(), int(chunk_count(p.row.V)), &shared.get());
  return shared.get();
}

// Sums the chunks that are special or not less than `first`, for rows of any kind, kAtOnce groups at a time.
template <int kAtOnce, class Special>
SPECDEC_DEVICE void sum_left_chunks(int first, const Dist& p, const Dist& q, const Special& special, const int& part,
                                    int per_warp, const float* chunk_max, float* sum) {
  for_left_chunks(chunk_count(p.row.V), first, special, part, per_warp, [&](int c) {
    const float s = reaches(p, chunk_max, c) ? chunk_sum<kAtOnce>(p, q, c) : 0.0f;
    if (threadIdx.x % kLanes == 0) __stcg(sum + c, s);
  });
}

// Sums all chunks by one block, with few registers. Rarely run.
SPECDEC_DEVICE void sum_all_chunks(const Dist& p, const Dist& q, const float* chunk_max, float* sum) {
  for_chunks(chunk_count(p.row.V), 0, turns(chunk_count(p.row.V), 1), [&](int c) {
    const float s = reaches(p, chunk_max, c) ? chunk_sum<1>(p, q, c) : 0.0f;
    if (threadIdx.x % kLanes == 0) __stcg(sum + c, s);
  });
}

// Sums the grouped chunks that are not special. A chunk whose plain_chunk_sum() is NaN becomes special.
template <class Special>
SPECDEC_DEVICE void sum_grouped_chunks(const Dist& p, const Dist& q, Special& special, const int& part, int per_warp,
                                       const float* chunk_max, float* sum) {
  with_weights(p, q, [&](auto type, auto of_p, auto of_q) {
    constexpr DType kType = decltype(type)::value;
    constexpr bool kLogits = decltype(of_p)::kKind == Kind::kLogits;
    const int whole = whole_chunks(p, q);
    const Row x = p.row, y = q.row;  // in registers, like all that the loops read
    const auto put = [&](int c, const auto& sum_of) {
      if (special.has(c)) return;
      const float s = reaches(of_p, chunk_max, c) ? sum_of() : 0.0f;
      if (threadIdx.x % kLanes == 0) __stcg(sum + c, s);
    };
    const auto pass = [&](auto minus) {
      for_chunks(whole, part, per_warp, [&](int c) {
        put(c, [&] { return grouped_chunk_sum<kType, decltype(minus)::value, true>(x, y, c, kChunk, of_p, of_q); });
      });
    };
    const auto pass_last = [&](auto minus) {
      if (grouped_chunks(p, q) == whole) return;
      const int left = left_of(x, whole);
      for_chunk(whole, part, per_warp, [&](int c) {
        put(c, [&] { return grouped_chunk_sum<kType, decltype(minus)::value, false>(x, y, c, left, of_p, of_q); });
      });
    };
    constexpr bool kHasPlain = kLogits && kType != kFloat32 && std::is_same_v<Special, SpecialChunks>;
    if (!has_dense_row(q)) {
      pass(std::false_type());
      return pass_last(std::false_type());
    }
    bool plain = false;
    if constexpr (kHasPlain) {
      plain = keeps_all(of_p) && keeps_all(of_q);
      if (plain)
        for_chunks(whole, part, per_warp, [&](int c) {
          if (special.has(c)) return;
          const float s = plain_chunk_sum<kType>(x, y, c, of_p, of_q);
          if (s != s) return special.add(c);
          if (threadIdx.x % kLanes == 0) __stcg(sum + c, s);
        });
    }
    if (!plain) pass(std::true_type());
    pass_last(std::true_type());
  });
}

// Writes the chunk sums of (p - q)+ for the chunks of block `part`. p, q and `part` are read from memory again before
// each loop, and not kept in registers over the loop before it.
template <class Special>
SPECDEC_DEVICE void sum_chunks(const Dist& p, const Dist& q, Special&& special, const int& part, int per_warp,
                               const float* chunk_max, float* sum) {
  sum_grouped_chunks(p, q, special, part, per_warp, chunk_max, sum);
  forget();
  sum_left_chunks<kPairs>(grouped_chunks(p, q), p, q, special, part, per_warp, chunk_max, sum);
}

// The grid of a launch in which several blocks share each of N rows. The last block of a row to finish goes on alone.
struct RowGrid {
  int* arrived = nullptr;  // [N]
  int blocks = 1;          // per row
  int per_warp = 1;

  SPECDEC_DEVICE int64_t row() const { return blockIdx.x / blocks; }
  SPECDEC_DEVICE int part() const { return int(blockIdx.x % blocks); }
  SPECDEC_DEVICE bool last() const { return last_block(arrived + row(), blocks); }
};

// Reserves the counters and tables of a grid over N rows of V entries, in the scratch memory of the launch.
class RowGridRoom {
 public:
  RowGridRoom(Scratch& scratch, int64_t N, int64_t V, bool filters)
      : N_(N), chunks_(chunk_count(V)), arrived_(scratch.ask<int>(N)), table_(scratch, N, chunks_, filters) {}

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

// SPDX-License-Identifier: Apache-2.0
// The CUDA Executor: the steps over V that a walk needs, done by one block over chunk sums that many blocks may have
// left in memory.
#pragma once

#include "../core/final_token.h"
#include "top_k_top_p.cuh"
#include "chunk_reduce.cuh"

namespace specdec {

// A walk over rows whose laws are all at hand.
struct NoExecutor {
  SPECDEC_HD RowStats stats(const Row&, const Filters&) const { return {}; }
  SPECDEC_HD bool leads() const { return true; }
};

// The largest finite entry's id, 0 if there is none.
SPECDEC_DEVICE int64_t block_argmax_finite(const Row& row) {
  float max = -HUGE_VALF;
  int best = INT32_MAX;
  for (int v = threadIdx.x; v < row.V; v += kThreads) {
    const float z = load_scalar(row, v);
    if (z > max && z < HUGE_VALF) max = z, best = v;
  }
  const float top = block_max(max);
  const int id = block_min(max == top ? best : INT32_MAX);
  return id == INT32_MAX ? 0 : id;
}

// Of the chunk sums of a row
SPECDEC_DEVICE Prefix<double> scan_chunks(int64_t V, const float* sums) {
  return scan_runs<double>(int(chunk_count(V)), [&](int c) { return double(__ldcg(sums + c)); });
}
SPECDEC_DEVICE double block_sum_of(int64_t V, const float* sums) { return scan_chunks(V, sums).total; }

// A thread's neighbours of a chunk that the block shares
using ThreadRun = RunOf<kChunk / kThreads>;
SPECDEC_DEVICE ThreadRun thread_run(int64_t chunk) {
  return {chunk * kChunk + int64_t(threadIdx.x) * ThreadRun::kEntries};
}

// Inverse CDF in two levels: the chunk by its sum, then the id in it by weigh(a ThreadRun, w).
template <class Weigh>
SPECDEC_DEVICE int64_t block_draw(int64_t V, double v, const Prefix<double>& prefix, const float* sums,
                                  const Weigh& weigh) {
  const double target = v * prefix.total;
  const Pick chunk = find(int(chunk_count(V)), target, prefix, [&](int c) { return double(__ldcg(sums + c)); });
  // The fraction of the chunk's own weight, since the rescan adds it up in another order. One thread divides: doubles
  // may be slow. The barriers of the scan make it known.
  __shared__ double fraction;
  if (threadIdx.x == 0) fraction = (target - chunk.before) / chunk.inside;
  constexpr int kRun = ThreadRun::kEntries;
  const int first = chunk.index * kChunk, n = chunk_size(V, chunk.index), begin = int(threadIdx.x) * kRun;
  float w[kRun];
  double own = 0;
  weigh(thread_run(chunk.index), w);
#pragma unroll
  for (int r = 0; r < kRun; ++r) own += begin + r < n && w[r] > 0 ? w[r] : 0;
  const Prefix<double> inside = block_scan(own);
  return first + find<kRun>(n, fraction * inside.total, inside, [&](int i) { return double(w[i - begin]); }).index;
}

// The chunks of a row that are a thread's, a run of neighbours
struct OwnChunks {
  float max = -HUGE_VALF;
  bool bad = false;       // a sum of theirs is NaN
  ChunkStats last{0, 0};  // where there is one
  bool one = false;       // at most one for each thread

  SPECDEC_DEVICE OwnChunks(const ChunkTable& table, int chunks) {
    const int run = (chunks + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
    one = run == 1;
    for (int c = begin; c < begin + run && c < chunks; ++c) {
      last = {__ldcg(table.max + c), __ldcg(table.sum + c)};
      max = fmaxf(max, last.max), bad |= last.sum != last.sum;
    }
  }
};

// What a row's chunks weigh relative to its maximum, from their statistics; each thread asks for its own.
struct ChunkShares {
  const ChunkTable& table;
  const OwnChunks& own;
  float max, rate;

  SPECDEC_DEVICE double operator()(int c) const {
    const ChunkStats stats = own.one ? own.last : ChunkStats{__ldcg(table.max + c), __ldcg(table.sum + c)};
    return stats.sum > 0 ? double(stats.sum) * fast_exp2(scaled(stats.max, max, rate)) : 0.0;
  }
};

// log_norm of a row whose shares add up to `total`; leaves the chunk sums of p.
SPECDEC_DEVICE float normalise_chunks(int chunks, const ChunkShares& share, double total, float* sums) {
  __shared__ float log_norm;
  __shared__ double norm;
  if (threadIdx.x == 0) log_norm = float(log(total)), norm = exp(-double(log_norm));  // one thread: doubles may be slow
  __syncthreads();
  for (int c = threadIdx.x; c < chunks; c += kThreads) __stcg(sums + c, float(share(c) * norm));
  const float found = log_norm;
  __syncthreads();
  return found;
}

// Chunks of what is left of a row of logits where ids were taken out
SPECDEC_DEVICE void reduce_chunks_without(const Dist& q, const Removed& removed, int part, int per_warp,
                                          const ChunkTable& table) {
  for_chunks(chunk_count(q.row.V), part, per_warp, [&](int64_t c) {
    const ChunkStats stats = chunk_stats_without(q, removed, c);
    if (threadIdx.x % kLanes == 0) __stcg(table.max + c, stats.max), __stcg(table.sum + c, stats.sum);
  });
}

// What is left, as a law of its own: it is measured from the largest logit that is left, so that nothing is lost
// however little that weighs; log_norm is NaN where nothing is left. Leaves its chunk sums in `sums`.
SPECDEC_DEVICE RowStats block_stats_without(const Dist& q, const ChunkTable& table, float* sums) {
  const int chunks = int(chunk_count(q.row.V));
  const OwnChunks own(table, chunks);
  const float max = block_max(own.max);
  if (max == -HUGE_VALF) return {q.stats.scale, q.stats.cutoff, NAN, max};
  const ChunkShares share{table, own, max, q.stats.scale * kLog2E};
  const double total = block_sum<double>(chunks, share);
  return {q.stats.scale, q.stats.cutoff, normalise_chunks(chunks, share, total, sums), max};
}

// The four floats of a row from its chunk statistics. Leaves the chunk sums of p in `sums`, which may be the table's,
// unless a filter is on.
template <bool kFiltered>
SPECDEC_DEVICE RowStats block_stats(const Row& row, const Filters& filters, const ChunkTable& table, float* sums) {
  const int chunks = int(chunk_count(row.V));
  const float scale = filters.scale();
  const OwnChunks own(table, chunks);
  const float max = block_max(own.max) + 0.0f;  // -0 and +0 are one logit, and stand as +0 in a law
  if (__syncthreads_or(own.bad || !filters.sane()) || max == -HUGE_VALF) {
    const float z = load_scalar(row, block_argmax_finite(row));
    return {scale, -FLT_MAX, NAN, fabsf(z) < HUGE_VALF ? z + 0.0f : -HUGE_VALF};
  }
  if (filters.greedy()) {
    int chunk = INT32_MAX;
    const int run = (chunks + kThreads - 1) / kThreads, begin = int(threadIdx.x) * run;
    for (int c = begin; c < begin + run && c < chunks && chunk == INT32_MAX; ++c) {
      if (__ldcg(table.max + c) == max) chunk = c;
    }
    const int64_t first = int64_t(block_min(chunk)) * kChunk;
    int id = INT32_MAX;
    for (int i = threadIdx.x; i < kChunk && first + i < row.V && id == INT32_MAX; i += kThreads) {
      if (load_scalar(row, first + i) == max) id = i;
    }
    return {scale, max, float(first + block_min(id)), max};
  }
  const ChunkShares share{table, own, max, scale * kLog2E};
  const double total = block_sum<double>(chunks, share);
  if constexpr (kFiltered) {
    if (filters.any(row.V)) {
      const Nucleus::Kept kept = Nucleus(row, table.max, table.samples, max, scale).emit(filters, total);
      return {scale, kept.cutoff + 0.0f, float(log(double(kept.mass) * Nucleus::kUnit)), max};
    }
  }
  return {scale, -FLT_MAX, normalise_chunks(chunks, share, total, sums), max};
}

// The same, in place
template <bool kFiltered>
SPECDEC_DEVICE RowStats block_stats(const Row& row, const Filters& filters, const ChunkTable& table) {
  return block_stats<kFiltered>(row, filters, table, table.sum);
}

class BlockExecutor {
 public:
  enum Held { kNothingHeld, kPlain, kPair };

  // `sum` [chunks] holds the chunk sums of p (kPlain) or of (p - q)+ (kPair) for the laws that the walk asks of first;
  // `chunk_max` [chunks] those of p's row, or null.
  SPECDEC_DEVICE BlockExecutor(const RowStats& stats, float* sum, const float* chunk_max, Held held)
      : stats_(stats), sum_(sum), chunk_max_(chunk_max), held_(held) {}

  SPECDEC_DEVICE bool leads() const { return threadIdx.x == 0; }
  SPECDEC_DEVICE RowStats stats(const Row&, const Filters&) const { return stats_; }

  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    const Held wanted = q.kind == Kind::kNothing ? kPlain : kPair;
    if (held_ != wanted) {
      __syncthreads();
      sum_chunks_from<1>(0, p, q, 0, turns(chunk_count(p.row.V), 1), chunk_max_, sum_);  // seldom: few registers
      __syncthreads();
      held_ = wanted;
    }
    prefix_ = scan_chunks(p.row.V, sum_);
    return prefix_.total;
  }

  // Right after the sum
  SPECDEC_DEVICE int64_t draw(const Dist& p, const Dist& q, double v) const {
    return block_draw(p.row.V, v, prefix_, sum_, [&](const ThreadRun& at, auto& w) { specdec::weigh(p, q, at, w); });
  }

  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const { return block_argmax_finite(row); }

 protected:
  const RowStats stats_;
  float* sum_;
  const float* chunk_max_;
  Held held_;
  Prefix<double> prefix_{};  // of the sums that were added up last
};

}  // namespace specdec

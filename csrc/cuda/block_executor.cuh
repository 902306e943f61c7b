// SPDX-License-Identifier: Apache-2.0
// The basic CUDA Executor. One block does the steps over V that a walk (the sequential verification of one request)
// needs. It starts from chunk sums that other blocks may have left in memory.
#pragma once

#include "../core/final_token.h"
#include "block_stats.cuh"
#include "chunk_draw.cuh"

namespace specdec {

// The Executor of one thread, for rows whose stats are all known: it sums nothing, and needs no table.
struct NoExecutor {
  SPECDEC_HD RowStats stats(const Row&, const Filters&) const { return {}; }
  SPECDEC_HD bool leads() const { return true; }
};

// Rarely run, so they are not inlined
namespace apart {

SPECDEC_APART double target_sum(const Dist* p, const float* chunk_max, float* sums) {
  __syncthreads();
  sum_all_chunks(*p, Dist{}, chunk_max, sums);
  __syncthreads();
  return block_sum_of(p->row.V, sums);
}

SPECDEC_APART int64_t target_draw(const Dist* p, double v, const float* sums) {
  return block_draw(block_choose(p->row.V, v, sums),
                    [&](const ThreadRun& at, auto& w, const auto& meanwhile) { weigh(*p, Dist{}, at, w, meanwhile); });
}

}  // namespace apart

// An Executor of one block that may find chunk sums of p or (p - q)+ in memory, left by other blocks. (A
// ResidualExecutor computes all stats and sums by itself.)
class BlockExecutor {
 public:
  // Which chunk sums are in memory: none, those of p, or those of (p - q)+
  enum Held { kNothingHeld, kPlain, kPair };

  // `sum` [chunks] is memory for chunk sums. Unless `held` is kNothingHeld, it holds those of the distribution that the
  // walk sums first. `chunk_max` [chunks] holds the chunk maxima of p's row, or is null.
  SPECDEC_DEVICE BlockExecutor(const RowStats& stats, float* sum, const float* chunk_max, Held held)
      : stats_(stats), sum_(sum), chunk_max_(chunk_max), held_(held) {}

  // Whether this thread writes the results
  SPECDEC_DEVICE bool leads() const { return threadIdx.x == 0; }
  SPECDEC_DEVICE int thread() const { return int(threadIdx.x); }
  SPECDEC_DEVICE int threads() const { return kThreads; }
  SPECDEC_DEVICE RowStats stats(const Row&, const Filters&) const { return stats_; }

  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    hold(p, q);
    return block_sum_of(p.row.V, sum_);
  }

  // The total of p alone. p must be in memory, since its address is taken.
  SPECDEC_DEVICE double sum(const Dist& p) {
    held_ = kNothingHeld;
    return apart::target_sum(&p, chunk_max_, sum_);
  }
  SPECDEC_DEVICE int64_t draw(const Dist& p, double v) const { return apart::target_draw(&p, v, sum_); }

  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const { return block_argmax_finite(row); }

 protected:
  // Computes the chunk sums of (p - q)+, or of p if q is of kind kNothing, unless they are in memory.
  SPECDEC_DEVICE void hold(const Dist& p, const Dist& q) {
    const Held wanted = q.kind == Kind::kNothing ? kPlain : kPair;
    if (held_ == wanted) return;
    __syncthreads();
    sum_all_chunks(p, q, chunk_max_, sum_);
    __syncthreads();
    held_ = wanted;
  }

  const RowStats stats_;
  float* sum_;
  const float* chunk_max_;
  Held held_;
};

}  // namespace specdec

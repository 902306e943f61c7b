// SPDX-License-Identifier: Apache-2.0
// The CUDA Executor: the steps over V that a walk needs, done by one block over chunk sums that many blocks may have
// left in memory.
#pragma once

#include "../core/final_token.h"
#include "block_stats.cuh"
#include "chunk_draw.cuh"

namespace specdec {

// A walk by one thread over rows whose laws are all at hand: it sums nothing, and needs no table.
struct NoExecutor {
  SPECDEC_HD RowStats stats(const Row&, const Filters&) const { return {}; }
  SPECDEC_HD bool leads() const { return true; }
};

// Seldom, and so out of the way of what is run
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

// One block that finds the chunk sums of p or (p - q)+ left by others; a ResidualExecutor makes laws and sums itself.
class BlockExecutor {
 public:
  enum Held { kNothingHeld, kPlain, kPair };

  // `sum` [chunks] holds the chunk sums of p (kPlain) or of (p - q)+ (kPair) for the laws that the walk asks of first;
  // `chunk_max` [chunks] those of p's row, or null.
  SPECDEC_DEVICE BlockExecutor(const RowStats& stats, float* sum, const float* chunk_max, Held held)
      : stats_(stats), sum_(sum), chunk_max_(chunk_max), held_(held) {}

  SPECDEC_DEVICE bool leads() const { return threadIdx.x == 0; }
  SPECDEC_DEVICE int thread() const { return int(threadIdx.x); }
  SPECDEC_DEVICE int threads() const { return kThreads; }
  SPECDEC_DEVICE RowStats stats(const Row&, const Filters&) const { return stats_; }

  SPECDEC_DEVICE double sum(const Dist& p, const Dist& q) {
    hold(p, q);
    return block_sum_of(p.row.V, sum_);
  }

  // Of p alone, which lies in memory
  SPECDEC_DEVICE double sum(const Dist& p) { return apart::target_sum(&p, chunk_max_, sum_); }
  SPECDEC_DEVICE int64_t draw(const Dist& p, double v) const { return apart::target_draw(&p, v, sum_); }

  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const { return block_argmax_finite(row); }

 protected:
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

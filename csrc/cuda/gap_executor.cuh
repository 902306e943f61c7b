// SPDX-License-Identifier: Apache-2.0
// An executor for walks by a rule. If expect_gap() announces a pair of rows, it computes their TV and both entropies in
// one pass. It needs more registers than a walk down a tree can spare.
#pragma once

#include "mixture_executor.cuh"

namespace specdec {
namespace apart {

// sum (p - q)+ and the entropies of two rows of logits of equal length. Each is added up in the same order as in a pass
// of its own, so it has the same bits. tv, of_p, of_q [chunks]: memory for the chunk sums.
SPECDEC_APART void gap_sums(const Pair* pair, float* tv, float* of_p, float* of_q, PairGap* out) {
  const Dist &p = pair->p.p, &q = pair->q;
  const int64_t chunks = chunk_count(p.row.V);
  for_chunks(chunks, cluster_rank(), turns(chunks, cluster_size()), [&](int64_t c) {
    float sums[3][2] = {};
#pragma unroll 1
    for (int first = 0; first < kGroups; first += kPairs) {
      const EarlyGroupsOf<kPairs> at{c, first};
      constexpr int N = kPairs * kGroup;
      float x[N], y[N];
      at.raw(p.row, -HUGE_VALF, x);
      at.raw(q.row, -HUGE_VALF, y);
      at.floats(p.row, -HUGE_VALF, x);
      at.floats(q.row, -HUGE_VALF, y);
#pragma unroll
      for (int r = 0; r < N; ++r) sums[1][r % 2] += surprise(p.stats, x[r]), sums[2][r % 2] += surprise(q.stats, y[r]);
      const LogitWeights of_target(p), of_draft(q);
#pragma unroll
      for (int r = 0; r < N; ++r)
        sums[0][r % 2] += Compare<float>::positive(of_target.of_target(x[r]) - of_draft.of_draft(y[r]));
    }
    float* const to[3] = {tv + c, of_p + c, of_q + c};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const float all = warp_sum(sums[k][0] + sums[k][1]);
      if (threadIdx.x % kLanes == 0) __stcg(to[k], all);
    }
  });
  cluster_sync();
  const double found[3] = {block_sum_of(p.row.V, tv), block_sum_of(p.row.V, of_p), block_sum_of(p.row.V, of_q)};
  if (threadIdx.x == 0) *out = {found[0], 0, entropy_of(p.stats, found[1]), entropy_of(q.stats, found[2])};
  __syncthreads();
}

}  // namespace apart

// A MixtureExecutor that computes TV and both entropies of a pair in one pass and keeps them. For that it needs memory
// for a third set of chunk sums.
class GapExecutor : public MixtureExecutor {
 public:
  // third [2 * clusters, chunks]: memory for the chunk sums for which a ChunkTable has no place
  SPECDEC_DEVICE GapExecutor(const ExecutorTables& tables, float* third, char* shared)
      : MixtureExecutor(tables, shared), third_(third + 2 * cluster_index() * tables.chunks) {
    if (keeps()) held_gap() = {};
    __syncthreads();
  }

  SPECDEC_DEVICE double tv(const Dist& p, const Dist& q) {
    const HeldGap& held = held_gap();
    return held.p && p.row.id() == held.p && q.row.id() == held.q ? held.gap.tv : MixtureExecutor::tv(p, q);
  }
  SPECDEC_DEVICE double entropy(const Dist& d) {
    const HeldGap& held = held_gap();
    if (held.p && d.row.id() == held.p) return held.gap.entropy_p;
    if (held.p && d.row.id() == held.q) return held.gap.entropy_q;
    return MixtureExecutor::entropy(d);
  }
  // Computes the TV and both entropies of a pair for which they will be needed, and keeps them. Only for rows without
  // filters: such a row has one distribution, so the kept values stay valid.
  SPECDEC_DEVICE void expect_gap(const Dist& p, const Dist& q) {
    if (p.kind != Kind::kLogits || q.kind != Kind::kLogits || p.row.V != q.row.V || q.row.is_listed()) return;
    const apart::Pair& pair = shared(Residual{p}, &q);
    const ChunkTable table = next_table();
    held_ = nullptr;
    apart::gap_sums(&pair, table.sum, table.max, third_ + turn_ * chunks_, &held_gap().gap);
    if (keeps()) held_gap().p = p.row.id(), held_gap().q = q.row.id();
    __syncthreads();
  }

 private:
  struct HeldGap {
    RowId p, q;  // the rows of `gap`; null: there is none
    PairGap gap{};
  };
  SPECDEC_DEVICE HeldGap& held_gap() const {
    __shared__ Uninitialised<HeldGap> room;
    return room.get();
  }

  float* const third_;  // [2, chunks]
};

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Exact verification of few positions, in two launches. `scan_positions` leaves the chunk statistics of the rows at
// every position up to the draft's end, if their stats are not given. `verify_positions` may begin before that launch
// ends, and then waits for it. Each of its blocks makes the stats of one request's rows and tests its drafts for
// itself, a warp per position, so it finds the stop without waiting for other blocks. `scan_positions` zeroes the one
// counter of each request, so nothing has to be zero before the first launch.
#pragma once

#include "../../cuda/cluster_launch.h"
#include "chain_end.cuh"
#include "looked_up.cuh"

namespace specdec {
namespace {

constexpr int kMostOfRequest = 32;  // the most positions of one request
constexpr int kFewPositions = 144;  // up to so many, reading rows after the stop costs less than finding it first

inline bool fits_at_once(const VerifyChain& a) {
  const bool filters = a.target.sampling.filters() || a.draft.sampling.filters();
  return cuda_path(VerifyChain::kName) != CudaPath::kStreaming && !a.by_rule() && !filters && a.G < kMostOfRequest &&
         a.B * (a.G + 1) <= kFewPositions;
}

__global__ void __launch_bounds__(kThreads, 4) scan_positions(const Step s) {
  let_next_begin();
  const VerifyChain& a = s.a;
  const int blocks = s.target.blocks + s.draft.blocks > 0 ? s.target.blocks + s.draft.blocks : 1;
  const int unit = int(blockIdx.x) / blocks, b = unit % int(a.B), i = unit / int(a.B);
  const int number = int(blockIdx.x % blocks);
  if (i == 0 && number == 0 && threadIdx.x == 0) s.summed[b] = 0;
  if (!a.present.has(b)) return;
  __shared__ Uninitialised<Part> shared;
  Part& part = shared.get();
  const bool needless = ends_before(a, b, i, threadIdx.x, kThreads);
  if (threadIdx.x == kLanes && i <= a.drafted(b)) plan<false>(s, b, i, number, part);
  if (__syncthreads_or(needless)) return;
  if (part.row.V > 0) reduce_chunks<false>(part.row, part.scale, part.number, s.per_warp, part.table);
}

// The test result of a position, in shared memory
struct Tested {
  DraftTest test;
  int32_t drafted, bonus;
  float log_prob;  // of a draft that is accepted
  int64_t token;
};

// Makes the stats of a row by one warp, as warp_stats() does.
SPECDEC_DEVICE RowStats warp_law(const Row& row, const Filters& filters, const Reduced& reduced, int64_t index,
                                 float* sums) {
  const Row stored = row.as_stored();
  const RowStats stats = warp_stats(stored, filters, reduced.table.row(index, chunk_count(stored.V)), sums);
  return row.is_listed() ? stats_by_id(row.listed(), stats) : stats;
}

// Tests each position up to the draft's end. `plain` [G + 1, chunks], or null: memory for the chunk sums of p. They are
// left at positions where the final token may be drawn from them once at most one chunk is summed again. No thread
// returns before the previous launch is done.
SPECDEC_DEVICE void test_positions(const Step& s, int64_t start, int64_t b, float* plain,
                                   Uninitialised<Tested>* tests) {
  const VerifyChain& a = s.a;
  const int64_t chunks = chunk_count(a.target.memory.V);
#pragma unroll 1
  for (int64_t i = threadIdx.x / kLanes; i <= s.a.G; i += kWarps) {
    LookedUp at = look_at(s, start, b, i);
    const bool beyond = __any_sync(kFullWarp, ends_before(s.a, b, i, int(threadIdx.x) % kLanes, kLanes));
    if (threadIdx.x % kLanes == 0 && !beyond) look_up_token(s.a, b, i, at);
    wait_for_launch();
    if (beyond) return;
    if (at.makes_p) {
      float* const sums = plain && (!at.drafted || at.one_hot()) ? plain + i * chunks : nullptr;
      at.p = from_stats(at.p.row, warp_law(at.p.row, at.of_p, s.target, a.target.index(start, b, i), sums));
    }
    if (at.makes_q)
      at.q = from_stats(at.q.row, warp_law(at.q.row, at.of_q, s.draft, a.draft.index(start, b, i), nullptr));
    if (threadIdx.x % kLanes != 0) continue;
    if (at.q.row.is_listed()) at.z_q = at.q.entry(at.token);
    const DraftTest test = test_draft(at);
    tests[i].get() = {test, at.drafted, at.bonus, test.accepted ? float(at.log_prob(test.p)) : 0, at.token};
  }
  wait_for_launch();  // warps that have no position wait here; for others this returns at once
}

__global__ void __launch_bounds__(kThreads, 2) verify_positions(const Step s) {
  const VerifyChain& a = s.a;
  const int64_t b = blockIdx.x / s.residual_blocks;
  const bool leads = blockIdx.x % s.residual_blocks == 0;
  if (!a.present.has(b)) {
    wait_for_launch();
    if (leads) put_absent(a, b, threadIdx.x, kThreads);
    return;
  }
  __shared__ Uninitialised<Tested> tests[kMostOfRequest];
  __shared__ Uninitialised<Ending> shared;
  const int64_t chunks = chunk_count(a.target.memory.V);
  float* const plain = s.end_sums + b * (a.G + 1) * chunks;
  const int64_t start = a.start(b);
  find_given(s, b, shared.get());
  test_positions(s, start, b, leads ? plain : nullptr, tests);
  __syncthreads();
  int i = 0;
  while (tests[i].get().test.accepted) ++i;  // nothing is accepted after the last draft
  if (leads && int(threadIdx.x) < i) {
    const Tested& accepted = tests[threadIdx.x].get();
    put_draft(a, b, threadIdx.x, accepted.token, accepted.log_prob);
  }
  if (threadIdx.x == 0) {
    const Tested& at = tests[i].get();
    set_out(s, start, b, i, at.drafted, at.bonus, at.test, plain + i * chunks, shared.get());
  }
  __syncthreads();
  finish_at(s, tests[i].get().test, shared.get());
}

void verify_at_once(const Step& s, int64_t blocks, cudaStream_t stream) {
  SPECDEC_LAUNCH("verify_chain", scan_positions, blocks, stream, s);
  SPECDEC_LAUNCH_DEPENDENT("verify_chain", verify_positions, s.a.B * s.residual_blocks, stream, s);
}

}  // namespace
}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Exact chains of few positions: `scan_positions` leaves the chunk statistics of all their rows at once; each block of
// `verify_positions` then makes a request's laws and tests its drafts for itself, a warp a position, so that it knows
// the stop with nothing to wait for. No counter has to be zero before the first launch.
#pragma once

#include "../../cuda/cluster_launch.h"
#include "chain_end.cuh"

namespace specdec {
namespace {

constexpr int kMostOfRequest = 32;  // positions
constexpr int kFewPositions = 64;   // up to here reading behind the stop costs less than finding out

inline bool fits_at_once(const VerifyChain& a) {
  const bool filters = a.target.sampling.filters() || a.draft.sampling.filters();
  return cuda_path(VerifyChain::kName) != CudaPath::kStreaming && !a.by_rule() && !filters && a.G < kMostOfRequest &&
         a.B * (a.G + 1) <= kFewPositions;
}

__global__ void __launch_bounds__(kThreads, 4) scan_positions(const Step s) {
  const VerifyChain& a = s.a;
  const int blocks = s.target.blocks + s.draft.blocks > 0 ? s.target.blocks + s.draft.blocks : 1;
  const int unit = int(blockIdx.x) / blocks, b = unit % int(a.B), i = unit / int(a.B);
  const int number = int(blockIdx.x % blocks);
  if (i == 0 && number == 0 && threadIdx.x == 0) s.summed[b] = 0;
  if (!a.present.has(b)) return;
  __shared__ Uninitialised<Part> shared;
  Part& part = shared.get();
  const bool needless = ends_before(a, b, i, threadIdx.x, kThreads);
  if (threadIdx.x == 0 && !needless) plan<false>(s, b, i, number, part);
  if (__syncthreads_or(needless)) return;
  if (part.row.V > 0) reduce_chunks<false>(part.row, part.scale, part.number, s.per_warp, part.table);
}

// The laws that were made of a position's rows, in the order in which a test asks for them
struct MadeLaws {
  RowStats first{}, second{};
  int made = 0, asked = 0;

  SPECDEC_DEVICE void add(const RowStats& stats) { (made++ == 0 ? first : second) = stats; }
  SPECDEC_DEVICE RowStats stats(const Row&, const Filters&) { return asked++ == 0 ? first : second; }
};

SPECDEC_DEVICE RowStats warp_law(const Side& side, const Reduced& reduced, int64_t start, int64_t b, int64_t i,
                                 float* sums) {
  const ChunkTable table = reduced.table.row(side.index(start, b, i), chunk_count(side.rows.V));
  return warp_stats(side.at(start, b, i), side.sampling.at<false>(b), table, sums);
}

// What is found at each position up to the draft's end; `plain`: where the chunk sums of the law behind it go, or null.
SPECDEC_DEVICE void test_positions(const Step& s, int64_t b, float* plain, Uninitialised<DraftTest>* tests) {
  const VerifyChain& a = s.a;
  const int lane = int(threadIdx.x) % kLanes;
  const int64_t start = a.start(b), g = a.drafted(b);
#pragma unroll 1
  for (int64_t i = threadIdx.x / kLanes; i <= g; i += kWarps) {
    if (__any_sync(kFullWarp, ends_before(a, b, i, lane, kLanes))) return;
    MadeLaws laws;
    if (reduces_target(s, start, b, i))
      laws.add(warp_law(a.target, s.target, start, b, i, a.has_draft(b, i) ? nullptr : plain));
    if (reduces_draft(s, start, b, i, true)) laws.add(warp_law(a.draft, s.draft, start, b, i, nullptr));
    if (lane == 0) tests[i].get() = test_draft(laws, a, b, i, [&] { return a.accept_uniform(b, i); });
  }
}

__global__ void __launch_bounds__(kThreads, 2) verify_positions(const Step s) {
  const VerifyChain& a = s.a;
  const int64_t b = blockIdx.x / s.residual_blocks;
  const bool leads = blockIdx.x % s.residual_blocks == 0;
  if (!a.present.has(b)) {
    if (leads) put_absent(a, b, threadIdx.x, kThreads);
    return;
  }
  __shared__ Uninitialised<DraftTest> tests[kMostOfRequest];
  __shared__ Uninitialised<Ending> shared;
  float* const plain = s.end_sums + b * chunk_count(a.target.rows.V);
  test_positions(s, b, leads ? plain : nullptr, tests);
  __syncthreads();
  int i = 0;
  while (tests[i].get().accepted) ++i;  // behind the last draft nothing is accepted
  if (leads && int(threadIdx.x) < i) emit_draft(a, b, threadIdx.x, tests[threadIdx.x].get().p);
  if (threadIdx.x == 0) set_out(s, b, i, tests[i].get(), plain, shared.get());
  __syncthreads();
  finish_at(s, shared.get());
}

void verify_at_once(const Step& s, int64_t blocks, cudaStream_t stream) {
  SPECDEC_LAUNCH("verify_chain", scan_positions, blocks, stream, s);
  SPECDEC_LAUNCH("verify_chain", verify_positions, s.a.B * s.residual_blocks, stream, s);
}

}  // namespace
}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Inverse CDF by one block in two levels: the chunk, by its first warp from sums that lie in memory, then the id in it.
#pragma once

#include "chunk_reduce.cuh"

namespace specdec {

struct SumAt {
  const float* sums;
  SPECDEC_DEVICE float operator()(int c, bool inside) const { return inside ? __ldcg(sums + c) : 0.0f; }
};

// Chunk sums as the first warp of a block has added them up; the others know nothing of them.
struct ChunkSums {
  WarpRuns<SumAt> runs;
  double before = 0;  // the lane's run
  double total = 0;
};

// By one warp
SPECDEC_DEVICE ChunkSums warp_sums_of(int64_t V, const float* sums) {
  ChunkSums r;
  r.runs = WarpRuns(int(chunk_count(V)), SumAt{sums});
  double own = 0;
  r.runs.each([&](int, float w) { own += w; });
  const double upto = warp_upto(own);
  r.before = warp_before(upto);
  r.total = __shfl_sync(kFullWarp, upto, kLanes - 1);
  return r;
}

// The total, for all threads
SPECDEC_DEVICE double block_sum_of(int64_t V, const float* sums) {
  __shared__ double total;
  if (threadIdx.x < kLanes) {
    const double found = warp_sums_of(V, sums).total;
    if (threadIdx.x == 0) total = found;
  }
  __syncthreads();
  const double found = total;
  __syncthreads();
  return found;
}

// What the first warp says of the chunk, and of all
struct ChosenChunk {
  double total;
  int index;
  double over, inside;  // how far the target lies beyond the chunks in front, and the chunk's own weight
  double fraction;      // of that weight, since the rescan adds it up in another order: set_fraction()'s

  // By one thread, once the choice is known: a division that nothing waits for until entries are added up
  SPECDEC_DEVICE void set_fraction() { fraction = over / inside; }
};

// The first entry of the chunk whose running sum exceeds that fraction of all, from what each thread's entries weigh.
SPECDEC_DEVICE int draw_in_chunk(const double& fraction, const float (&w)[ThreadRun::kEntries]) {
  __shared__ double of_warp[kWarps];
  __shared__ int drawn;
  const int warp = int(threadIdx.x) / kLanes, lane = int(threadIdx.x) % kLanes;
  double own = 0;
#pragma unroll
  for (const float x : w) own += x > 0 ? x : 0;
  const double upto = warp_upto(own);
  if (lane == kLanes - 1) of_warp[warp] = upto;
  __syncthreads();
  // Each warp finds out which of them has it.
  const double of_lane = lane < kWarps ? of_warp[lane] : 0, through = warp_upto<kWarps>(of_lane);
  Crossing warps{warp_before(through), fraction * __shfl_sync(kFullWarp, through, kWarps - 1)};
  warps.pass(lane, of_lane);
  warps = warp_crossing(warps);
  if (warp == (warps.index < 0 ? 0 : warps.index)) {
    Crossing crossing{warps.before + warp_before(upto), warps.target};
#pragma unroll
    for (int r = 0; r < ThreadRun::kEntries; ++r) crossing.pass(int(threadIdx.x) * ThreadRun::kEntries + r, w[r]);
    const int index = warp_crossing(crossing).index;
    if (lane == 0) drawn = index < 0 ? 0 : index;
  }
  __syncthreads();
  return drawn;
}

// By one warp
SPECDEC_DEVICE void warp_choose(int64_t V, double v, const float* sums, ChosenChunk* chosen) {
  const ChunkSums all = warp_sums_of(V, sums);
  Crossing crossing{all.before, v * all.total};
  all.runs.each([&](int c, float w) { crossing.pass(c, w); });
  const Crossing chunk = warp_crossing(crossing);
  if (threadIdx.x == 0)
    *chosen = {all.total, chunk.index < 0 ? 0 : chunk.index, v * all.total - chunk.before, chunk.inside, 0};
}
SPECDEC_APART void leave_choice(int64_t V, double v, const float* sums, ChosenChunk* chosen) {
  warp_choose(V, v, sums, chosen);
}

// For all threads: choose(where to leave it) is for the first warp.
template <class Choose>
SPECDEC_DEVICE ChosenChunk& block_choose(const Choose& choose) {
  __shared__ Uninitialised<ChosenChunk> shared;
  if (threadIdx.x < kLanes) choose(&shared.get());
  __syncthreads();
  return shared.get();
}
SPECDEC_DEVICE ChosenChunk& block_choose(int64_t V, double v, const float* sums) {
  return block_choose([&](ChosenChunk* chosen) { leave_choice(V, v, sums, chosen); });
}

// An id by what weigh(a ThreadRun, w, meanwhile) says of the chunk, which calls meanwhile() while it waits for entries.
template <class Weigh>
SPECDEC_DEVICE int64_t block_draw(ChosenChunk& chunk, const Weigh& weigh) {
  float w[ThreadRun::kEntries];
  weigh(thread_run(chunk.index), w, [&] {
    if (threadIdx.x == 0) chunk.set_fraction();
  });
  return int64_t(chunk.index) * kChunk + draw_in_chunk(chunk.fraction, w);
}

}  // namespace specdec

// SPDX-License-Identifier: Apache-2.0
// Inverse CDF by one block in two levels: the chunk, by its first warp from sums that lie in memory, then the id in it.
#pragma once

#include "chunk_reduce.cuh"

namespace specdec {

struct SumAt {
  const float* sums;
  SPECDEC_DEVICE float operator()(int c, bool inside) const { return inside ? __ldcg(sums + c) : 0.0f; }
};

// Chunk sums as one warp asks memory for them
using SumRuns = WarpRuns<SumAt>;
SPECDEC_DEVICE SumRuns sums_of(int64_t V, const float* sums) { return {int(chunk_count(V)), SumAt{sums}}; }

// As the first warp of a block has added them up; the others know nothing of them.
struct ChunkSums {
  double before = 0;  // the lane's run
  double total = 0;
};

// By one warp
SPECDEC_DEVICE ChunkSums warp_sums(const SumRuns& runs) {
  ChunkSums r;
  double own = 0;
  runs.each([&](int, float w) { own += w; });
  const double upto = warp_upto(own);
  r.before = warp_before(upto);
  r.total = __shfl_sync(kFullWarp, upto, kLanes - 1);
  return r;
}

// The total, for all threads
SPECDEC_DEVICE double block_sum_of(int64_t V, const float* sums) {
  __shared__ double total;
  if (threadIdx.x < kLanes) {
    const double found = warp_sums(sums_of(V, sums)).total;
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

// By one warp
SPECDEC_DEVICE void warp_choose(const SumRuns& runs, double v, ChosenChunk* chosen) {
  const ChunkSums all = warp_sums(runs);
  Crossing crossing{all.before, v * all.total};
  runs.each([&](int c, float w) { crossing.pass(c, w); });
  if (int(threadIdx.x) == crossing_lane(crossing))
    *chosen = {all.total, crossing.index < 0 ? 0 : crossing.index, crossing.target - crossing.before, crossing.inside,
               0};
}
SPECDEC_APART void leave_choice(int64_t V, double v, const float* sums, ChosenChunk* chosen) {
  warp_choose(sums_of(V, sums), v, chosen);
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

// The first id of the chunk whose running sum exceeds that fraction of all, from what each thread's entries weigh.
// Whether it is this thread's: one says so.
SPECDEC_DEVICE bool finds_in_chunk(const ChosenChunk& chunk, const float (&w)[ThreadRun::kEntries], int64_t& id) {
  __shared__ double of_warp[kWarps];
  const int thread = opaque(int(threadIdx.x)), warp = thread / kLanes, lane = thread % kLanes;
  double own = 0;
#pragma unroll
  for (const float x : w) own += x > 0 ? x : 0;
  const double upto = warp_upto(own);
  if (lane == kLanes - 1) of_warp[warp] = upto;
  __syncthreads();
  // Each warp finds out which of them has it.
  const double of_lane = lane < kWarps ? of_warp[lane] : 0, through = warp_upto<kWarps>(of_lane);
  Crossing warps{warp_before(through), chunk.fraction * __shfl_sync(kFullWarp, through, kWarps - 1)};
  warps.pass(lane, of_lane);
  const int found = crossing_lane(warps);  // a lane a warp; 0 where none has weight
  const double before = __shfl_sync(kFullWarp, warps.before, found) + warp_before(upto);
  if (warp != found) return false;
  Crossing crossing{before, warps.target};
#pragma unroll
  for (int r = 0; r < ThreadRun::kEntries; ++r) crossing.pass(int(threadIdx.x) * ThreadRun::kEntries + r, w[r]);
  id = int64_t(chunk.index) * kChunk + (crossing.index < 0 ? 0 : crossing.index);
  return lane == crossing_lane(crossing);
}

// An id, for all threads, by what weigh(a ThreadRun, w, meanwhile) says of the chunk, which calls meanwhile() while it
// waits for entries.
template <class Weigh>
SPECDEC_DEVICE int64_t block_draw(ChosenChunk& chunk, const Weigh& weigh) {
  __shared__ int64_t drawn;
  float w[ThreadRun::kEntries];
  weigh(thread_run(chunk.index), w, [&] {
    if (threadIdx.x == 0) chunk.set_fraction();
  });
  int64_t id;
  if (finds_in_chunk(chunk, w, id)) drawn = id;
  __syncthreads();
  return drawn;
}

}  // namespace specdec

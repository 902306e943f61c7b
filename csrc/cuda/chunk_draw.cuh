// SPDX-License-Identifier: Apache-2.0
// Inverse CDF sampling by one block in two levels: its first warp chooses a chunk by the chunk sums in memory, then the
// block finds the id in that chunk.
#pragma once

#include "chunk_reduce.cuh"

namespace specdec {

// Loads chunk sum c, or 0 if it is not inside the lane's run.
struct SumAt {
  const float* sums;
  SPECDEC_DEVICE float operator()(int c, bool inside) const { return inside ? __ldcg(sums + c) : 0.0f; }
};

// The chunk sums of a row, loaded by one warp
using SumRuns = WarpRuns<SumAt>;
SPECDEC_DEVICE SumRuns sums_of(int64_t V, const float* sums) { return {int(chunk_count(V)), SumAt{sums}}; }

// The chunk sums added up, known only to the first warp of a block
struct ChunkSums {
  double before = 0;  // sum of the chunks before the lane's run
  double total = 0;
};

// Called by one warp
SPECDEC_DEVICE ChunkSums warp_sums(const SumRuns& runs) {
  ChunkSums r;
  double own = 0;
  runs.each([&](int, float w) { own += w; });
  const double upto = warp_upto(own);
  r.before = warp_before(upto);
  r.total = __shfl_sync(kFullWarp, upto, kLanes - 1);
  return r;
}

// The total of the chunk sums, for all threads of a block
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

// The chunk that the first warp chose
struct ChosenChunk {
  double total;
  int index;
  double over, inside;  // v times the total, minus the sum of the chunks before; the sum of this chunk
  double fraction;      // over / inside: the draw adds up the chunk in another order, to another sum

  // Called by one thread, once the choice is known. Nothing waits for this division until the entries of the chunk are
  // added up.
  SPECDEC_DEVICE void set_fraction() { fraction = over / inside; }
};

// Called by one warp. The chosen chunk is the one where the running sum exceeds v times the total.
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

// Returns the chosen chunk to all threads. The first warp calls choose(chosen), which writes it to *chosen.
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

// Finds the first id of the chunk whose running sum exceeds the fraction `chunk.fraction` of the chunk's total; w are
// the weights of this thread's entries. Returns true in the one thread that has this id.
SPECDEC_DEVICE bool finds_in_chunk(const ChosenChunk& chunk, const float (&w)[ThreadRun::kEntries], int64_t& id) {
  __shared__ double of_warp[kWarps];
  const int thread = opaque(int(threadIdx.x)), warp = thread / kLanes, lane = thread % kLanes;
  double own = 0;
#pragma unroll
  for (const float x : w) own += x > 0 ? x : 0;
  const double upto = warp_upto(own);
  if (lane == kLanes - 1) of_warp[warp] = upto;
  __syncthreads();
  // Every warp computes which warp has the id.
  const double of_lane = lane < kWarps ? of_warp[lane] : 0, through = warp_upto<kWarps>(of_lane);
  Crossing warps{warp_before(through), chunk.fraction * __shfl_sync(kFullWarp, through, kWarps - 1)};
  warps.pass(lane, of_lane);
  const int found = crossing_lane(warps);  // lane w stands for warp w; 0 if none has weight
  const double before = __shfl_sync(kFullWarp, warps.before, found) + warp_before(upto);
  if (warp != found) return false;
  Crossing crossing{before, warps.target};
#pragma unroll
  for (int r = 0; r < ThreadRun::kEntries; ++r) crossing.pass(int(threadIdx.x) * ThreadRun::kEntries + r, w[r]);
  id = int64_t(chunk.index) * kChunk + (crossing.index < 0 ? 0 : crossing.index);
  return lane == crossing_lane(crossing);
}

// Draws an id from the chosen chunk, for all threads. weigh(a ThreadRun, w, meanwhile) computes a thread's weights, and
// calls meanwhile() while it waits for its entries.
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

// SPDX-License-Identifier: Apache-2.0
// Runs the race on a row (core/race.h) by a cluster of blocks.
#pragma once

#include "race_field.cuh"
#include "residual_executor.cuh"

namespace specdec {

// The best racer of all lanes, in every lane
SPECDEC_DEVICE Racer warp_best(Racer x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    x.meet({__shfl_xor_sync(kFullWarp, x.key, step), int64_t(__shfl_xor_sync(kFullWarp, int(x.id), step))});
  return x;
}

// Racers in memory: the best one of each block of a cluster, or of each chunk of a row
struct RacerTable {
  double* keys = nullptr;
  int* ids = nullptr;

  SPECDEC_DEVICE RacerTable from(int64_t at) const { return {keys + at, ids + at}; }
  SPECDEC_DEVICE void put(int64_t at, const Racer& racer) const {
    __stcg(keys + at, racer.key), __stcg(ids + at, int(racer.id));
  }
  SPECDEC_DEVICE Racer at(int64_t at) const { return {__ldcg(keys + at), __ldcg(ids + at)}; }
};

// Reserves a RacerTable of n racers.
class RacerRoom {
 public:
  RacerRoom(Scratch& scratch, int64_t n) : keys_(scratch.ask<double>(n)), ids_(scratch.ask<int>(n)) {}
  RacerTable in(const Scratch& scratch) const { return {scratch.at<double>(keys_), scratch.at<int>(ids_)}; }

 private:
  size_t keys_, ids_;
};

// The memory that a launch gives its RaceExecutors: each cluster has two parts of it. A pass over V takes the part that
// the pass before did not take, since late threads may still read that one.
struct RaceTables {
  ChunkTable chunks;    // [2 * clusters]
  RacerTable racers;    // [2 * clusters, kLargestCluster]
  int64_t per_row = 0;  // chunks
};

// Reserves the RaceTables of a launch, for rows of at most V entries.
class RaceRoom {
 public:
  RaceRoom(Scratch& scratch, int64_t clusters, int64_t V, bool filters)
      : per_row_(chunk_count(V)),
        chunks_(scratch, 2 * clusters, per_row_, filters),
        racers_(scratch, 2 * clusters * kLargestCluster) {}
  RaceTables in(const Scratch& scratch) const { return {chunks_.in(scratch), racers_.in(scratch), per_row_}; }

 private:
  int64_t per_row_;
  TableRoom chunks_;
  RacerRoom racers_;
};

// An Executor of a cluster of blocks. It makes stats and runs races, and sums nothing else.
class RaceExecutor {
 public:
  static constexpr bool kMixes = false, kMakesRuleDists = true;

  SPECDEC_DEVICE explicit RaceExecutor(const RaceTables& tables) : tables_(tables) {}

  SPECDEC_DEVICE bool leads() const { return cluster_rank() == 0 && threadIdx.x == 0; }
  SPECDEC_DEVICE int thread() const { return cluster_rank() * kThreads + int(threadIdx.x); }
  SPECDEC_DEVICE int threads() const { return cluster_size() * kThreads; }

  SPECDEC_DEVICE RowStats stats(const Row& row, const Filters& filters) {
    turn_ ^= 1;
    return cluster_stats<true>(row, filters, tables_.chunks.row(2 * cluster_index() + turn_, tables_.per_row), nullptr);
  }
  SPECDEC_DEVICE int64_t argmax_finite(const Row& row) const {
    const int64_t at = block_argmax_finite(row.as_stored());
    if (!row.is_listed()) return at;
    return fabsf(row.as_stored().entry(at)) < HUGE_VALF ? clamped(row.listed()->of(at), kIdsEnd - 1) : 0;
  }

  // Returns the winner, or -1 if nothing is kept or the row is invalid.
  SPECDEC_DEVICE int64_t race(const Dist& d, const Noise& noise) {
    const Field field(d, noise);
    const int chunks = int(field.chunks()), own = turns(chunks, cluster_size()) * kWarps, first = cluster_rank() * own;
    const int end = first + own < chunks ? first + own : chunks;  // as in for_chunks()
    float bar = field.bar();
    while (true) {
      Racer best;
      field.race(first + int(threadIdx.x) / kLanes, end, bar, 0, best);
      best = cluster_best(best);
      if (Field::reaches(best, bar)) return best.key == best.key ? best.id : -1;
      bar = kNoBar;
    }
  }

 protected:
  // Calls f(c) for this warp's chunks.
  template <class F>
  SPECDEC_DEVICE void for_own_chunks(const Field& field, const F& f) const {
    for_chunks(field.chunks(), cluster_rank(), turns(field.chunks(), cluster_size()), f);
  }

  SPECDEC_DEVICE Racer cluster_best(Racer x) {
    __shared__ Uninitialised<Racer> of_warp[kWarps];
    x = warp_best(x);
    if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes].get() = x;
    __syncthreads();
    x = of_warp[0].get();
#pragma unroll 1
    for (int w = 1; w < kWarps; ++w) x.meet(of_warp[w].get());
    turn_ ^= 1;
    const RacerTable table = tables_.racers.from((2 * cluster_index() + turn_) * kLargestCluster);
    if (cluster_size() > 1 && threadIdx.x == 0) table.put(cluster_rank(), x);
    cluster_sync();
#pragma unroll 1
    for (int r = 0; r < cluster_size() && cluster_size() > 1; ++r) x.meet(table.at(r));
    return x;
  }

  const RaceTables tables_;
  int turn_ = 0;
};

}  // namespace specdec

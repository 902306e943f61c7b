// SPDX-License-Identifier: Apache-2.0
// The first k ids of a race (race.h). A cluster of blocks takes one row.
#include "race.h"

#include "../../cuda/race.cuh"
#include "sample_race.cuh"

namespace specdec {
namespace {

// For each chunk, the best racer that has not won yet, and which entries have won. Used only if more than one token is
// wanted.
struct Chunks {
  RacerTable best;           // [N, chunks]
  uint32_t* gone = nullptr;  // [N, chunks, 32]: bit r: entry r of the lane has won

  SPECDEC_DEVICE Chunks row(int64_t n, int64_t chunks) const {
    return {best.from(n * chunks), gone + n * chunks * kLanes};
  }
};

struct Races {
  Sample a;
  RaceTables tables;
  Chunks chunks;
};

// A RaceExecutor that keeps the best racer of each chunk, so that after a win it reads only the winner's chunk again
class ChunkRacer : public RaceExecutor {
 public:
  SPECDEC_DEVICE ChunkRacer(const Races& s, int64_t n)
      : RaceExecutor(s.tables), chunks_(s.chunks.row(n, s.tables.per_row)) {}

  // Returns the next winner, or -1. `taken`: the winners so far, of k
  SPECDEC_DEVICE int64_t race(const Dist& q, const Noise& noise, const Few& taken, int64_t k) {
    if (k == 1) return RaceExecutor::race(q, noise);
    const Field field(q, noise);
    const int won = taken.n > 0 ? field.chunk_of(last_) : -1;
    Racer best;
    for_own_chunks(field, [&](int c) {
      if (won < 0 || c == won) find(field, c, won < 0);
      best.meet(chunks_.best.at(c));
    });
    best = cluster_best(best);
    last_ = best.id;
    return best.key == best.key ? best.id : -1;
  }

 private:
  // Finds the best racer of chunk c without the ids that have won, by one warp. `first`: none has won yet, and `gone`
  // is not set.
  SPECDEC_DEVICE void find(const Field& field, int c, bool first) const {
    uint32_t* const gone = chunks_.gone + c * kLanes + threadIdx.x % kLanes;
    const uint32_t won = first ? 0 : *gone | field.bit_of(c, last_);
    *gone = won;
    float bar = field.bar_of(c, won);
    while (true) {
      Racer best;
      field.race(c, c + 1, bar, won, best);
      best = warp_best(best);
      if (Field::reaches(best, bar)) {
        __syncwarp();
        if (threadIdx.x % kLanes == 0) chunks_.best.put(c, best);
        __syncwarp();
        return;
      }
      bar = kNoBar;
    }
  }

  const Chunks chunks_;
  int64_t last_ = -1;
};

// Reads by id need more than 128 registers, so only one block of them fits an SM.
__global__ void __launch_bounds__(kThreads, kReadsIds ? 1 : 2) race_rows(const Races s) {
  const int64_t n = cluster_index();
  if (!s.a.present.has(n)) {
    if (cluster_rank() == 0) put_absent(s.a, n, threadIdx.x, kThreads);
    return;
  }
  ChunkRacer executor(s, n);
  sample_by_race(executor, s.a, n);
}

}  // namespace

template <>
std::function<void()> prepare_race<kReadsIds>(const Sample& a, const Tensor& like,
                                              [[maybe_unused]] cudaStream_t stream) {
  const ClusterShape shape = cluster_shape<race_rows>("sample", a.N, {});
  const int64_t chunks = a.k == 1 ? 0 : a.N * chunk_count(a.logits.V);
  Scratch scratch;
  const RaceRoom room(scratch, a.N, a.logits.V, a.sampling.filters());
  const RacerRoom best(scratch, chunks);
  const size_t gone = scratch.ask<uint32_t>(chunks * kLanes);
  scratch.allocate(like);
  return [=] {
    const Races s{a, room.in(scratch), {best.in(scratch), scratch.at<uint32_t>(gone)}};
    SPECDEC_LAUNCH_CLUSTERS("sample", race_rows, a.N, shape, stream, s);
  };
}

}  // namespace specdec
